"""Output whose reader has gone, for instance `| head -1`: verbs that change something go on without it."""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Unbroken(io.FileIO):
    """A file descriptor that takes what is written after its reader has gone, and drops it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(memoryview(data).cast("B"))


@contextmanager
def outliving_readers() -> Iterator[None]:
    """Within it, writing to standard output and standard error never raises BrokenPipeError.

    Streams that are not the process's own, as those of a test that captures output, are left as they are.
    """
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_unbroken, kept)
    try:
        yield
    finally:
        for each in (sys.stdout, sys.stderr):
            each.flush()
        sys.stdout, sys.stderr = kept


def _unbroken(stream: TextIO) -> TextIO:
    if stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    stream.flush()
    raw = _Unbroken(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True)


def open_missing_streams() -> None:
    """Lets standard descriptors that were closed at the start lead nowhere: no file of ours gets their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)


def drop_output() -> None:
    """Lets standard output lead nowhere, so that what is left in its buffer raises nothing at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_unread() -> bool:
    """Whether nobody reads standard output any more. Asking costs nothing, so work that waits to print may ask."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream of a test has no descriptor
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
