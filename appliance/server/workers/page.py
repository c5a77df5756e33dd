"""A page of memory that all workers share: what the rules of keys have left, and what is open.

A row belongs to one worker, which alone writes it; the keeper clears it when the worker is gone. Levels of keys are
written by all, under the file's lock, which the kernel releases when its holder dies.

Everything but digests is a word of 8 bytes on a boundary of 8, read and written by one instruction each: no process
reads half of what another one writes, with the lock or without, and a worker that is killed leaves no half of a number.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

MAX_KEYS = 4096  # with rules; of further ones each worker counts alone
_WORD = 8
_DIGEST = 2  # words
_LEVEL = 2
_ROW = 2
_NUM_LEVELS = 2


def _slot_words(count: int) -> int:
    return _DIGEST + _NUM_LEVELS * _LEVEL + count


def _page_bytes(count: int) -> int:
    return _WORD * (count * _ROW + MAX_KEYS * _slot_words(count))


class SharedPage:
    """`index` is the worker's own row, of `count`. Places are counted in words."""

    def __init__(self, path: Path, index: int, count: int) -> None:
        """Opens what `make` made."""
        self._index = index
        self._count = count
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, _page_bytes(count))
        self._integers = memoryview(self._memory).cast("q")
        self._floats = memoryview(self._memory).cast("d")

    @classmethod
    def make(cls, path: Path, count: int) -> "SharedPage":
        """A new page, for the keeper."""
        with path.open("xb") as file:
            file.truncate(_page_bytes(count))
        return cls(path, 0, count)

    def close(self) -> None:
        self._integers.release()
        self._floats.release()
        self._memory.close()
        os.close(self._file)

    def note(self, num_open_sequences: int, num_tokens_ahead: int) -> None:
        """Publishes what this worker has open, and its prompt tokens that wait for a first token."""
        self._write_row(self._index, num_open_sequences, num_tokens_ahead)

    def others(self) -> tuple[int, int]:
        """The same of all other workers together."""
        rows = self._integers[: self._count * _ROW].tolist()
        del rows[self._index * _ROW : (self._index + 1) * _ROW]
        return sum(rows[::_ROW]), sum(rows[1::_ROW])

    def clear(self, index: int) -> None:
        """That worker is gone, and what it had open with it."""
        self._write_row(index, 0, 0)
        with self.locked():
            for start in self._used_slots():
                self._integers[self._open_at(start, index)] = 0

    def account(self, name: str) -> "SharedAccount | None":
        """Returns the account of the key of that name; None when the page is full."""
        digest = sha256(name.encode("utf-8", "surrogatepass")).digest()[: _DIGEST * _WORD]
        with self.locked():
            free = self._slot_start(0)
            for start in self._used_slots():
                if self._digest(start) == digest:
                    return SharedAccount(self, start)
                free = start + _slot_words(self._count)
            if free == self._slot_start(MAX_KEYS):
                return None
            self._memory[free * _WORD : (free + _DIGEST) * _WORD] = digest
            return SharedAccount(self, free)

    @contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def read_level(self, start: int, which: int) -> tuple[float, float]:
        used, at = self._floats[self._level_at(start, which) :][:_LEVEL].tolist()
        return used, at

    def write_level(self, start: int, which: int, used: float, at: float) -> None:
        place = self._level_at(start, which)
        self._floats[place], self._floats[place + 1] = used, at

    def num_open(self, start: int) -> int:
        first = self._open_at(start, 0)
        return sum(self._integers[first : first + self._count].tolist())

    def add_open(self, start: int, change: int) -> None:
        self._integers[self._open_at(start, self._index)] += change

    def _write_row(self, index: int, num_open_sequences: int, num_tokens_ahead: int) -> None:
        self._integers[index * _ROW], self._integers[index * _ROW + 1] = num_open_sequences, num_tokens_ahead

    def _used_slots(self) -> Iterator[int]:
        """Yields the offsets of the used slots, which come first."""
        for slot in range(MAX_KEYS):
            start = self._slot_start(slot)
            if not any(self._digest(start)):
                return
            yield start

    def _digest(self, start: int) -> bytes:
        return self._memory[start * _WORD : (start + _DIGEST) * _WORD]

    def _slot_start(self, slot: int) -> int:
        return self._count * _ROW + slot * _slot_words(self._count)

    @staticmethod
    def _level_at(start: int, which: int) -> int:
        return start + _DIGEST + which * _LEVEL

    @staticmethod
    def _open_at(start: int, index: int) -> int:
        return start + _DIGEST + _NUM_LEVELS * _LEVEL + index


class SharedLevel:
    """See callers.Level: entered, it is this worker's alone."""

    def __init__(self, page: SharedPage, start: int, which: int) -> None:
        self.used = self.at = 0.0
        self._page = page
        self._start = start
        self._which = which
        self._lock = page.locked()

    def __enter__(self) -> "SharedLevel":
        self._lock = self._page.locked()
        self._lock.__enter__()
        self.used, self.at = self._page.read_level(self._start, self._which)
        return self

    def __exit__(self, *_: object) -> None:
        self._page.write_level(self._start, self._which, self.used, self.at)
        self._lock.__exit__(None, None, None)


class SharedAccount:
    """See callers.Account."""

    def __init__(self, page: SharedPage, start: int) -> None:
        self.requests = SharedLevel(page, start, 0)
        self.tokens = SharedLevel(page, start, 1)
        self._page = page
        self._start = start

    def try_open(self, most: int | None) -> bool:
        with self._page.locked():
            if most is not None and self._page.num_open(self._start) >= most:
                return False
            self._page.add_open(self._start, 1)
            return True

    def close(self) -> None:
        self._page.add_open(self._start, -1)
