"""A page of memory that all workers share: what the rules of keys have left, and what is open.

A row belongs to one worker, which alone writes it; the keeper clears it when the worker is gone. Levels of keys are
written by all, under the file's lock, which the kernel releases when its holder dies.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

MAX_KEYS = 4096  # with rules; of further ones each worker counts alone
_DIGEST = 16
_LEVEL = struct.Struct("<dd")
_ROW = struct.Struct("<qq")
_OPEN = struct.Struct("<i")


class SharedPage:
    """`index` is the worker's own row, of `count`."""

    def __init__(self, path: Path, index: int, count: int) -> None:
        """Opens what `make` made."""
        self._index = index
        self._count = count
        self._slot_bytes = _DIGEST + 2 * _LEVEL.size + count * _OPEN.size
        self._slots_at = count * _ROW.size
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, self._slots_at + MAX_KEYS * self._slot_bytes)

    @classmethod
    def make(cls, path: Path, count: int) -> "SharedPage":
        """A new page, for the keeper."""
        size = count * _ROW.size + MAX_KEYS * (_DIGEST + 2 * _LEVEL.size + count * _OPEN.size)
        with path.open("xb") as file:
            file.truncate(size)
        return cls(path, 0, count)

    def close(self) -> None:
        self._memory.close()
        os.close(self._file)

    def note(self, num_open_sequences: int, num_tokens_ahead: int) -> None:
        """What this worker has open, and the prompt tokens of it that wait for a first token."""
        _ROW.pack_into(self._memory, self._index * _ROW.size, num_open_sequences, num_tokens_ahead)

    def others(self) -> tuple[int, int]:
        """The same of all other workers together."""
        rows = [_ROW.unpack_from(self._memory, place * _ROW.size) for place in range(self._count)]
        del rows[self._index]
        return sum(row[0] for row in rows), sum(row[1] for row in rows)

    def clear(self, index: int) -> None:
        """That worker is gone, and what it had open with it."""
        _ROW.pack_into(self._memory, index * _ROW.size, 0, 0)
        with self.locked():
            for slot in range(MAX_KEYS):
                start = self._slot_start(slot)
                if not any(self._memory[start : start + _DIGEST]):
                    return
                _OPEN.pack_into(self._memory, self._open_at(start, index), 0)

    def account(self, name: str) -> "SharedAccount | None":
        """Of the key of that name; None when the page is full."""
        digest = sha256(name.encode("utf-8", "surrogatepass")).digest()[:_DIGEST]
        with self.locked():
            for slot in range(MAX_KEYS):
                start = self._slot_start(slot)
                found = self._memory[start : start + _DIGEST]
                if not any(found):
                    self._memory[start : start + _DIGEST] = digest
                    found = digest
                if found == digest:
                    return SharedAccount(self, start)
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def read_level(self, start: int, which: int) -> tuple[float, float]:
        used, at = _LEVEL.unpack_from(self._memory, start + _DIGEST + which * _LEVEL.size)
        return used, at

    def write_level(self, start: int, which: int, used: float, at: float) -> None:
        _LEVEL.pack_into(self._memory, start + _DIGEST + which * _LEVEL.size, used, at)

    def num_open(self, start: int) -> int:
        return sum(self._open(start, index) for index in range(self._count))

    def add_open(self, start: int, change: int) -> None:
        own = self._open(start, self._index)
        _OPEN.pack_into(self._memory, self._open_at(start, self._index), own + change)

    def _open(self, start: int, index: int) -> int:
        (value,) = _OPEN.unpack_from(self._memory, self._open_at(start, index))
        return int(value)

    def _open_at(self, start: int, index: int) -> int:
        return start + _DIGEST + 2 * _LEVEL.size + index * _OPEN.size

    def _slot_start(self, slot: int) -> int:
        return self._slots_at + slot * self._slot_bytes


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
