"""The progress of a call: a line on a terminal, or a bar of the caller's in the form of tqdm's."""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

UseTqdm = bool | Callable[..., Any]
_EVERY_S: Final = 0.1
_WIDTH: Final = 24


class StderrBar:
    """One line on stderr that changes; nothing where stderr is no terminal."""

    def __init__(self, total: int, desc: str) -> None:
        self._total = total
        self._desc = desc
        self._done = 0
        self._begun = time.monotonic()
        self._shown_at = 0.0
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def update(self, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if self._is_terminal and (now - self._shown_at >= _EVERY_S or self._done >= self._total):
            self._shown_at = now
            self._show(max(now - self._begun, 1e-9))

    def close(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\n")

    def _show(self, seconds: float) -> None:
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = "#" * filled + "." * (_WIDTH - filled)
        figures = f"{self._done}/{self._total} {self._done / seconds:.2f}/s"
        sys.stderr.write(f"\r\x1b[K{self._desc} [{bar}] {figures}")
        sys.stderr.flush()


class NoBar:
    def update(self, count: int = 1) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Ends nothing."""


def progress_bar(use_tqdm: UseTqdm, total: int, desc: str) -> Any:
    """Returns an object with tqdm's `update` and `close`. A callable is called as tqdm's class would be."""
    if callable(use_tqdm):
        return use_tqdm(total=total, desc=desc, dynamic_ncols=True)
    return StderrBar(total, desc) if use_tqdm else NoBar()
