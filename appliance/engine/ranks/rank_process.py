"""Another rank as its leader sees it: a connection, how far it is, and how it ended."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection

from appliance.base.log import fields, logger
from appliance.engine.ranks.handles import RankHandle, RankStartError
from appliance.engine.ranks.messages import (
    ENCODE,
    FROM_RANK,
    Beat,
    Close,
    FromRank,
    HandedBack,
    HandedOn,
    Load,
    Loaded,
    Loading,
    RankCalled,
    RankDone,
    RankEnded,
    RankMoved,
    RankStaged,
)
from appliance.engine.ranks.turns import LoadingTurns

_log = logger("engine")
_LOOK_S = 0.5  # after which a wait without an end looks whether it is still wanted
_END_WAIT_S = 5.0  # for a rank that was asked to end


class RankProcess:
    """One rank. `failed` is called from another thread when it ends unasked."""

    def __init__(
        self,
        first: Load,
        handle: RankHandle,
        failed: Callable[[], None],
        handed: Callable[[int, HandedOn | HandedBack], None],
        turns: LoadingTurns,
    ) -> None:
        """handed: is called from another thread with the rank and what its stage hands on. turns: it loads in one."""
        self.rank = first.rank
        self._handed = handed
        self._handle, self._failed = handle, failed
        self._connection: Connection | None = None
        self._reason: str | None = None
        self._blames_other = False
        self._is_ending = self._is_leaving = False
        self._num_sent = 0
        self._turns, self._has_turn = turns, False
        self._answers = threading.Condition()
        self._loaded: Loaded | None = None
        self._answered: deque[RankMoved | RankCalled | RankDone] = deque()  # in the order in which it was asked
        self._staged: RankStaged | None = None  # which comes while it does other things
        self._error: RankEnded | None = None
        self._progress = Loading(handle.phase, 0, 0)
        self._beat = Beat(0, 0)
        self._beat_at = time.monotonic()  # when it was there; when it was seen to go on
        self._moved_at = self._beat_at
        self.is_given_time = False  # it does what may take long, and has to show only that it is there
        threading.Thread(target=self._attend, args=(first,), name=f"rank {self.rank}", daemon=True).start()

    def send(self, encoded: bytes) -> None:
        """Sends an encoded message, for at most the time that ranks wait for one another. A rank that is gone, or that
        takes nothing, ends the next wait."""
        if self._num_sent == self._beat.num_handled:
            self._moved_at = time.monotonic()  # it had nothing to do until now
        self._num_sent += 1
        try:
            if self._connection is not None:
                self._connection.send_bytes(encoded)
        except OSError:
            self._is_leaving = True
            self._failed()

    @property
    def is_leaving(self) -> bool:
        """Its connection broke, and why it ended is not known yet."""
        return self._is_leaving and self._reason is None

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
    def has_loaded(self) -> bool:
        """It can run steps."""
        return self._loaded is not None

    def wait_answer(self, timeout_s: float) -> RankMoved | RankCalled | RankDone | None:
        """Waits until the rank has done what it was asked to; returns None if it ended, or is late."""
        deadline = time.monotonic() + timeout_s
        with self._answers:
            while not self._answered:
                left = deadline - time.monotonic()
                if self._reason is not None or left <= 0:
                    return None
                self._answers.wait(None if left == math.inf else left)
            return self._answered.popleft()

    def wait_staged(self) -> RankStaged | None:
        """Waits until the rank has read new weights, however long that takes; returns None if it ended."""
        with self._answers:
            while self._staged is None and self._reason is None and not self._is_ending:
                self._answers.wait(_LOOK_S)
            staged, self._staged = self._staged, None
            return staged

    @property
    def reason(self) -> str | None:
        """Why it ended, if it did so unasked."""
        return self._reason

    @property
    def blames_other(self) -> bool:
        """It ended since another rank was gone or late."""
        return self._blames_other

    @property
    def num_waits(self) -> int:
        """How often it has waited for the others, of a rank that shares no memory."""
        return self._beat.num_waits

    def silence_s(self, now: float) -> float:
        """Returns since when a rank that beats did not, or since when it has told of no progress."""
        if self._loaded is None:
            return now - self._beat_at if self._connection is not None else 0.0
        idle = self.is_given_time or self._beat.num_handled >= self._num_sent
        return now - (self._beat_at if idle else min(self._beat_at, self._moved_at))

    def lost(self, reason: str) -> None:
        """Notes why it is given up, if it has not ended by itself."""
        with self._answers:
            self._reason = self._reason or reason
            self._answers.notify_all()
        self._failed()

    def end(self, *, has_failed: bool) -> None:
        """Asks it to end, and ends it if it does not, or if the group has failed."""
        self._is_ending = True
        if has_failed:
            return self.kill()
        self.send(ENCODE(Close()))
        if self._handle.wait(_END_WAIT_S) is None:
            return self.kill()
        return None

    def kill(self) -> None:
        """Ends it at once."""
        self._is_ending = True
        self._handle.kill()

    def _attend(self, first: Load) -> None:
        """Talks with the rank until it is gone, from its turn to load on."""
        self._progress = Loading("waits for its turn", 0, 0)
        if not self._turns.take(lambda: self._is_ending):
            return
        self._has_turn, self._progress = True, Loading(self._handle.phase, 0, 0)
        try:
            self._talk(first)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the rank is told
            _log.exception("the leader cannot talk with a rank", extra=fields(rank=self.rank))
            self.lost(f"the leader cannot talk with rank {self.rank}: {type(error).__name__}: {error}")
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        """It has loaded, or is gone."""
        if self._has_turn:
            self._has_turn = False
            self._turns.give_back()

    def _talk(self, first: Load) -> None:
        try:
            connection = self._handle.connect(first)
            self._beat_at, self._connection = time.monotonic(), connection
            while True:
                self._hear(FROM_RANK.decode(connection.recv_bytes()))
        except RankStartError as error:
            return None if self._is_ending else self.lost(str(error))
        except (EOFError, OSError):
            how = self._handle.wait()
        if not self._is_ending:
            with self._answers:
                said = None if self._error is None else self._error.reason
                self._blames_other = self._error is not None and self._error.blames_other
            self.lost(f"rank {self.rank} ended: {said or how}")
        return None

    def _hear(self, answer: FromRank) -> None:
        if isinstance(answer, HandedOn | HandedBack):
            return self._handed(self.rank, answer)
        with self._answers:
            match answer:
                case Loading():
                    self._progress = answer
                case Loaded():
                    self._loaded = answer
                    self._end_turn()
                case Beat():
                    self._beat_at = time.monotonic()
                    if answer != self._beat:
                        self._beat, self._moved_at = answer, self._beat_at
                case RankMoved() | RankCalled() | RankDone():
                    self._answered.append(answer)
                case RankStaged():
                    self._staged = answer
                case RankEnded():
                    self._error = answer
            self._answers.notify_all()
        return None


def end_with_leader(alive: int) -> None:
    """Ends this process when the leader is gone, even while a step waits for it. alive: the read end of its pipe."""

    def watch() -> None:
        os.read(alive, 1)  # returns at the end of the pipe
        os._exit(0)

    threading.Thread(target=watch, name="leader", daemon=True).start()
