"""Doing something each time a spec's files have changed and come to rest."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

POLL_S: Final = 0.25
REST_S: Final = 0.5  # editors write a file in several steps, and people save several files one after the other

_Mark = tuple[tuple[str, int, int, int], ...]


class Watch:
    """Knows the files as they were when it was made.

    files: what is watched, asked anew each time, as a change may name others.
    """

    def __init__(
        self,
        files: Callable[[], Iterable[Path]],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._files = files
        self._clock = clock
        self._sleep = sleep
        self._done = self._mark()

    def run(self, act: Callable[[], None]) -> NoReturn:
        """Calls `act` after each change that has rested for REST_S. What changes while it works counts as a new change.

        Ends only by what `act` or the sleep raises.
        """
        seen, since = self._done, self._clock()
        while True:
            self._sleep(POLL_S)
            now = self._mark()
            if now != seen:
                seen, since = now, self._clock()
            elif now != self._done and self._clock() - since >= REST_S:
                self._done = now
                act()

    def _mark(self) -> _Mark:
        """Differs when a file was written, replaced, made or removed."""
        return tuple(_file_mark(file) for file in sorted(set(self._files())))


def _file_mark(file: Path) -> tuple[str, int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return str(file), 0, 0, 0
    return str(file), found.st_mtime_ns, found.st_size, found.st_ino
