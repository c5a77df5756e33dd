"""How a leader starts another rank, or waits for one that joins, and how it ends it."""

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from socket import SO_SNDTIMEO, SOL_SOCKET
from typing import Protocol

from appliance.base.errors import ApplianceError
from appliance.engine.ranks.messages import ENCODE, Load


class RankStartError(ApplianceError):
    """A rank could not load its share of the model, or did not join."""


class RankHandle(Protocol):
    """A rank that begins. phase: what it does until it says more."""

    phase: str

    def connect(self, first: Load) -> Connection:
        """Waits until the rank is there and knows what to load. Raises RankStartError if it does not come, or is not
        wanted any more."""

    def wait(self, timeout_s: float | None = None) -> str | None:
        """Waits until the rank is gone; returns how it ended, or None if it did not in this time."""

    def kill(self) -> None:
        """Ends it at once, or ends the wait for it."""


class StartedRank:
    """A process of this machine. It ends with this one, whatever ends this one."""

    def __init__(self, passed: Sequence[int], timeout_s: float) -> None:
        """passed: descriptors that it gets. timeout_s: for which a message to it waits, at most. Raises OSError if the
        system refuses a process."""
        ours, theirs = socket.socketpair()
        limit_sends(ours, timeout_s)
        alive, held = os.pipe()  # the rank ends when the last one who could write to it is gone
        # A stopped rank cannot notice that the leader is gone; the system ends it, with the thread that started it.
        leader = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        command = [sys.executable, "-m", "appliance.engine.ranks", str(theirs.fileno()), str(alive), str(leader)]
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(), alive, *passed))
        theirs.close()
        os.close(alive)
        self._alive: int | None = held
        self.phase = "interpreter"
        self._connection = Connection(ours.detach())

    def connect(self, first: Load) -> Connection:
        self._connection.send_bytes(ENCODE(first))
        return self._connection

    def wait(self, timeout_s: float | None = None) -> str | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._forget()
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        held, self._alive = self._alive, None
        if held is not None:
            os.close(held)


def limit_sends(end: socket.socket, timeout_s: float) -> None:
    """Has a message that is not taken fail after a time, with OSError."""
    end.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack("ll", math.ceil(timeout_s), 0))
