"""Ranks take turns to load, so that a host holds the translated weights of few of them at once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_LOOK_S: Final = 0.1  # after which a rank that waits looks whether it is still wanted


class LoadingTurns:
    """limit: None lets all load at once."""

    def __init__(self, limit: int | None) -> None:
        self._free = None if limit is None else threading.Semaphore(limit)

    def take(self, is_unwanted: Callable[[], bool] = lambda: False) -> bool:
        """Waits for a turn; returns False once it is unwanted."""
        while self._free is not None and not self._free.acquire(timeout=_LOOK_S):
            if is_unwanted():
                return False
        return True

    def give_back(self) -> None:
        if self._free is not None:
            self._free.release()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Holds a turn."""
        self.take()
        try:
            yield
        finally:
            self.give_back()
