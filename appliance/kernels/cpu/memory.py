"""Anonymous memory that costs nothing until it is touched."""

import ctypes
import mmap

import numpy as np


class MappedMemory:
    """Zeroed, page-aligned and private; `address` is valid until close."""

    def __init__(self, size_bytes: int) -> None:
        """Raises OSError when the system refuses."""
        self.size_bytes = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def floats(self, offset: int, count: int) -> np.ndarray:
        """A view of `count` f32 numbers that keeps the mapping alive."""
        return np.frombuffer(self._map, np.float32, count, offset)
