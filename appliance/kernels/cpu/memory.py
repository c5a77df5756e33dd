"""Lazily mapped memory, what the system is told of it, and the strides of arrays."""

import contextlib
import ctypes
import mmap
from typing import Any

import numpy as np

# linux/mman.h, since Linux 5.14; the mmap module does not name them
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23


class MappedMemory:
    """Zeroed, page-aligned memory, resident only once it is touched; `address` is valid until close."""

    def __init__(self, size_bytes: int, mapped: mmap.mmap | None = None) -> None:
        """Maps the memory, or takes over what is `mapped`. Raises OSError if the system refuses it."""
        self.size_bytes = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._is_shared = mapped is not None
        self._map = mapped or mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def prefault(self, offset: int, size_bytes: int) -> None:
        """Makes the pages of a range resident without changing them. A system that cannot do that leaves them lazy."""
        first = offset // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):
            self._map.madvise(MADV_POPULATE_WRITE, first, offset + size_bytes - first)

    def release(self, offset: int, size_bytes: int) -> None:
        """Gives the whole pages of a range back to the system; they are zero when they are touched again."""
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (offset + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if size > 0:
            # Memory that others map as well is gone only when it is gone for all of them.
            advise(self.address + first, size, mmap.MADV_REMOVE if self._is_shared else mmap.MADV_DONTNEED)

    def floats(self, offset: int, count: int) -> np.ndarray:
        """Returns a view of `count` f32 numbers that keeps the mapping alive."""
        return self.numbers(offset, count, np.dtype(np.float32))

    def numbers(self, offset: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Returns a view of `count` numbers of any type that keeps the mapping alive."""
        return np.frombuffer(self._map, dtype, count, offset)


def advise(address: int, size_bytes: int, advice: int) -> None:
    """Advises the system of whole pages (madvise(2)), while other threads run. Raises OSError if it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), advice) != 0:
        raise OSError(ctypes.get_errno(), "the system does not take the advice for memory")


def row_stride(array: np.ndarray) -> int:
    """Returns the elements from one row of a matrix to the next; numpy's stride is arbitrary for less than two rows."""
    return array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1]


def has_gaps(array: np.ndarray) -> bool:
    """Returns whether the innermost dimension is not contiguous."""
    return array.size > 0 and array.shape[-1] > 1 and array.strides[-1] != array.itemsize
