"""Handles output whose reader has gone (`| head -1`): verbs that change something go on without it."""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Unbroken(io.FileIO):
    """A file descriptor that drops output after its reader has gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(memoryview(data).cast("B"))


@contextmanager
def outliving_readers() -> Iterator[None]:
    """Makes writes to standard output and standard error never raise BrokenPipeError within the context.

    Streams that are not the process's own, such as those of a test that captures output, are not changed.
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
    """Opens /dev/null in place of standard descriptors that were closed, so that no other file gets their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)


def drop_output() -> None:
    """Redirects standard output to /dev/null, so that its remaining buffer raises no error at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_unread() -> bool:
    """Returns whether the reader of standard output has gone. It is cheap, so it may be called before each print."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream of a test has no descriptor
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
