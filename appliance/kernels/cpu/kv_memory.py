"""The memory of a paged cache: keys and values of each cache of a program, one after the other."""

import ctypes
from collections.abc import Sequence

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.memory import MappedMemory
from appliance.program.caches import KvShape


class KvMemory:
    """The memory of all caches. It is zeroed, and not resident before it is written or prefaulted."""

    def __init__(self, library: Library, limits: abi.Limits, shapes: Sequence[KvShape]) -> None:
        """Maps the memory. Raises OSError if the system refuses it."""
        size_of = library.functions.appl_kv_bytes
        sizes = [size_of(limits, shape.num_kv_heads, shape.head_dim) for shape in shapes]
        self.memory = MappedMemory(2 * sum(sizes))
        self._parts: list[tuple[int, int]] = []  # for keys or values of a cache: their offset, and the bytes of a block
        self.caches: ctypes.Array[abi.KvCache] = (abi.KvCache * len(shapes))()
        start = 0
        for cache, shape, size in zip(self.caches, shapes, sizes, strict=True):
            cache.keys, cache.values = self.memory.address + start, self.memory.address + start + size
            cache.num_kv_heads, cache.head_dim = shape.num_kv_heads, shape.head_dim
            self._parts += [(at, size // limits.num_blocks) for at in (start, start + size)]
            start += 2 * size

    @property
    def size_bytes(self) -> int:
        return self.memory.size_bytes

    def prefault(self, block: int) -> None:
        """Makes a block resident in every cache."""
        for start, block_bytes in self._parts:
            self.memory.prefault(start + block * block_bytes, block_bytes)
