"""Another rank as its leader sees it: a process, a connection, and how it ended."""

import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from socket import SO_SNDTIMEO, SOL_SOCKET, socketpair

from appliance.base.errors import ApplianceError
from appliance.engine.ranks.messages import ENCODE, FROM_RANK, Close, FromRank, Load, Loaded, Loading, RankEnded
from appliance.kernels.ranks import SharedMemory
from appliance.plan.types import EnginePlan

_END_WAIT_S = 5.0  # for a rank that was asked to end


class RankStartError(ApplianceError):
    """A rank could not load its share of the model."""


class RankProcess:
    """One started rank. `failed` is called from another thread when it ends unasked."""

    def __init__(self, plan: EnginePlan, rank: int, memory: SharedMemory, failed: Callable[[], None]) -> None:
        self.rank = rank
        self._reason: str | None = None
        self._failed = failed
        self._is_ending = False
        ours, theirs = socketpair()
        ours.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack("ll", math.ceil(plan.parallel.distributed_timeout_s), 0))
        alive, held = os.pipe()  # the rank ends when the last one who could write to it is gone
        passed = (theirs.fileno(), alive, memory.descriptor)
        command = [sys.executable, "-m", "appliance.engine.ranks", str(theirs.fileno()), str(alive)]
        self._process = subprocess.Popen(command, pass_fds=passed)
        theirs.close()
        os.close(alive)
        self._alive: int | None = held
        self._connection = Connection(ours.detach())
        self._answers = threading.Condition()
        self._loaded: Loaded | None = None
        self._error: RankEnded | None = None
        self._progress = Loading("interpreter", 0, 0)
        self.send(ENCODE(Load(plan, rank, memory.descriptor)))
        threading.Thread(target=self._listen, name=f"rank {rank}", daemon=True).start()

    def send(self, encoded: bytes) -> None:
        """Sends an encoded message, for at most the time that ranks wait for one another. A rank that is gone, or that
        takes nothing, ends the next wait."""
        try:
            self._connection.send_bytes(encoded)
        except OSError:
            self._failed()

    def wait_loaded(self, progress: Callable[[str, int, int], None]) -> Loaded:
        """Waits until the rank can run steps, and tells its progress. Raises RankStartError if it ended."""
        with self._answers:
            while self._loaded is None:
                if self._reason is not None:
                    raise RankStartError(self._reason, hint="" if self._error is None else self._error.hint)
                phase, done, total = self._progress.phase, self._progress.done, self._progress.total
                progress(f"rank {self.rank}: {phase}", done, total)
                self._answers.wait(0.2)
            return self._loaded

    @property
    def reason(self) -> str | None:
        """Why it ended, if it did so unasked."""
        return self._reason

    def end(self, *, has_failed: bool) -> None:
        """Asks it to end, and ends it if it does not, or if the group has failed."""
        self._is_ending = True
        if has_failed:
            return self.kill()
        self.send(ENCODE(Close()))
        try:
            self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            return self.kill()
        return self._forget()

    def kill(self) -> None:
        """Ends it at once."""
        self._is_ending = True
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None

    def _listen(self) -> None:
        while True:
            try:
                answer: FromRank = FROM_RANK.decode(self._connection.recv_bytes())
            except (EOFError, OSError):
                break
            with self._answers:
                match answer:
                    case Loading():
                        self._progress = answer
                    case Loaded():
                        self._loaded = answer
                    case RankEnded():
                        self._error = answer
                self._answers.notify_all()
        code = self._process.wait()
        if not self._is_ending:
            with self._answers:
                said = None if self._error is None else self._error.reason
                self._reason = f"rank {self.rank} ended: {said or _described(code)}"
                self._answers.notify_all()
            self._failed()


def _described(code: int) -> str:
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def end_with_leader(alive: int) -> None:
    """Ends this process when the leader is gone, even while a step waits for it. alive: the read end of its pipe."""

    def watch() -> None:
        os.read(alive, 1)  # returns at the end of the pipe
        os._exit(0)

    threading.Thread(target=watch, name="leader", daemon=True).start()
