"""Memory that costs nothing until it is touched, and how arrays lie in memory."""

import contextlib
import ctypes
import mmap

import numpy as np

MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14; the mmap module does not name it


class MappedMemory:
    """Zeroed, page-aligned and private; `address` is valid until close."""

    def __init__(self, size_bytes: int) -> None:
        """Raises OSError when the system refuses."""
        self.size_bytes = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def prefault(self, offset: int, size_bytes: int) -> None:
        """Makes the pages of a stretch resident, and changes nothing in them. A system that cannot leaves them lazy."""
        first = offset // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):
            self._map.madvise(MADV_POPULATE_WRITE, first, offset + size_bytes - first)

    def floats(self, offset: int, count: int) -> np.ndarray:
        """A view of `count` f32 numbers that keeps the mapping alive."""
        return np.frombuffer(self._map, np.float32, count, offset)


def row_stride(array: np.ndarray) -> int:
    """Elements from a row of a matrix to the next. Of fewer than two rows numpy may say anything: they have none."""
    return array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1]


def has_gaps(array: np.ndarray) -> bool:
    """Whether the elements of the innermost dimension do not follow each other."""
    return array.shape[-1] > 1 and array.strides[-1] != array.itemsize
