"""The memory of a paged cache: keys and values of each lane of its blocks, one after the other."""

import ctypes

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
        sizes = [size_of(limits, shape.num_kv_heads, shape.key_dim) for shape in shapes]
        lanes = [max(sizes[cache] for cache in lane) for lane in layout.lanes()]  # bytes of a block
        self.memory = MappedMemory(2 * limits.num_blocks * sum(lanes))
        self._parts: list[tuple[int, int]] = []  # for keys or values of a lane: their offset, and the bytes of a block
        self.caches: ctypes.Array[abi.KvCache] = (abi.KvCache * len(shapes))()
        for size, lane in zip(lanes, layout.lanes(), strict=True):
            start = 2 * limits.num_blocks * sum(lanes[: len(self._parts) // 2])
            self._parts += [(start, size), (start + limits.num_blocks * size, size)]
            for cache in lane:
                self._place(self.caches[cache], shapes[cache])
        for number, group in enumerate(layout.groups):
            for cache in group.caches:
                self.caches[cache].group = number

    def _place(self, cache: abi.KvCache, shape: KvShape) -> None:
        """Puts a cache into the lane that was added last."""
        (keys, size), (values, _) = self._parts[-2:]
        cache.keys, cache.values = self.memory.address + keys, self.memory.address + values
        cache.block_bytes, cache.num_kv_heads, cache.head_dim = size, shape.num_kv_heads, shape.key_dim

    @property
    def size_bytes(self) -> int:
        return self.memory.size_bytes

    def prefault(self, block: int) -> None:
        """Makes a block resident in every lane."""
        for start, block_bytes in self._parts:
            self.memory.prefault(start + block * block_bytes, block_bytes)
