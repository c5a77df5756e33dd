"""The memory of a paged cache: keys and values of each lane of its blocks, one after the other."""

import ctypes

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.memory import MappedMemory
from appliance.program.caches import KvShape
from appliance.program.operators import StepProgram


class KvMemory:
    """The memory of all lanes. It is zeroed, and not resident before it is written or prefaulted. Caches of different
    groups share lanes."""

    def __init__(self, library: Library, limits: abi.Limits, program: StepProgram) -> None:
        """Maps the memory. Raises OSError if the system refuses it."""
        layout, shapes = program.kv_layout(), program.caches
        size_of = library.functions.appl_kv_block_bytes
        self._num_blocks = limits.num_blocks
        self._parts: list[tuple[int, int]] = []  # for keys or values of a lane: their offset, and the bytes of a block
        end = 0
        for lane in layout.lanes():
            for part in (0, 1):
                dims = [(shapes[cache].num_kv_heads, *shapes[cache].stored_dims[part : part + 1]) for cache in lane]
                size = max((size_of(limits, *each) for each in dims if len(each) > 1), default=0)
                self._parts.append((end, size))
                end += limits.num_blocks * size
        self.memory = MappedMemory(end)
        self.caches: ctypes.Array[abi.KvCache] = (abi.KvCache * len(shapes))()
        for number, lane in enumerate(layout.lanes()):
            for cache in lane:
                self._place(self.caches[cache], shapes[cache], *self._parts[2 * number : 2 * number + 2])
        for number, group in enumerate(layout.groups):
            for cache in group.caches:
                self.caches[cache].group = number

    def _place(self, cache: abi.KvCache, shape: KvShape, keys: tuple[int, int], values: tuple[int, int]) -> None:
        """Puts a cache into a lane, whose keys and values are at these offsets and have so many bytes a block."""
        cache.num_kv_heads, cache.key_dim, cache.value_dim = shape.num_kv_heads, shape.key_dim, shape.value_dim
        cache.keys, cache.key_block_bytes = self.memory.address + keys[0], keys[1]
        if not shape.values_in_keys:
            cache.values, cache.value_block_bytes = self.memory.address + values[0], values[1]

    @property
    def size_bytes(self) -> int:
        """Returns nothing for a program without caches, though something is mapped."""
        return self.memory.size_bytes if self._parts else 0

    def lanes(self) -> list[np.ndarray]:
        """Returns the keys and the values of each lane, uint8 [num_blocks, bytes]: views that keep the memory alive."""
        views = (self.memory.numbers(start, self._num_blocks * size, np.dtype(np.uint8)) for start, size in self._parts)
        return [view.reshape(self._num_blocks, -1) for view in views if view.size]

    def prefault(self, block: int) -> None:
        """Makes a block resident in every lane."""
        for start, block_bytes in self._parts:
            self.memory.prefault(start + block * block_bytes, block_bytes)
