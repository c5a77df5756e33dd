"""The paged caches of keys and values on the device."""

from dataclasses import dataclass

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.gpu.device import DTYPES, Device
from appliance.program.operators import StepProgram


@dataclass(frozen=True, slots=True)
class PagedCache:
    """The cache of one attention block. keys: [blocks + 1, G, block_size, d]; values: [blocks + 1, G, block_size, e],
    or a view of the keys' first columns. Tokens without a slot are written to the last block, which no table has."""

    keys: torch.Tensor
    values: torch.Tensor
    group: int  # whose block tables it uses
    has_values: bool  # values are memory of their own

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def write(self, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None) -> None:
        """Stores k [T, G, d] and v [T, G, e] at slots int32 [T]; those of negative slots go where nobody reads."""
        slots = torch.where(slot_mapping < 0, (len(self.keys) - 1) * self.block_size, slot_mapping).long()
        blocks, places = slots // self.block_size, slots % self.block_size
        self.keys[blocks, :, places] = k.to(self.keys.dtype)
        if v is not None:
            self.values[blocks, :, places] = v.to(self.values.dtype)

    def gather(self, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys f32 [length, G, d] and values [length, G, e] of the sequence of a block table."""
        blocks = table[: -(-length // self.block_size)].long()
        keys, values = (part[blocks].transpose(1, 2).flatten(0, 1)[:length] for part in (self.keys, self.values))
        return keys.float(), values.float()


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """lanes: [blocks + 1, ...], the memory of all caches, a pair of keys and values for each lane of a block."""

    lanes: list[torch.Tensor]
    caches: list[PagedCache]  # by their number in the program

    @classmethod
    def of(cls, program: StepProgram, execution: Execution, device: Device) -> "CacheMemory":
        """Allocates the memory. A lane is as wide as the widest cache that any group has in it."""
        limits, layout = execution.limits, program.kv_layout()
        group_of = {cache: number for number, group in enumerate(layout.groups) for cache in group.caches}
        dtype, size = DTYPES[execution.numerics.kv_dtype], limits.block_size
        lanes: list[torch.Tensor] = []
        caches: dict[int, PagedCache] = {}
        for numbers in layout.lanes():
            shapes = {number: program.caches[number] for number in numbers}
            widths = (
                max(shape.num_kv_heads * shape.key_dim for shape in shapes.values()),
                max(shape.num_kv_heads * sum(shape.stored_dims[1:]) for shape in shapes.values()),
            )
            keys, values = (device.zeros(limits.num_blocks + 1, size * width, dtype=dtype) for width in widths)
            lanes += [keys, values]
            for number, shape in shapes.items():
                own = _blocks(keys, shape.num_kv_heads, size, shape.key_dim)
                apart = not shape.values_in_keys
                of_values = _blocks(values, shape.num_kv_heads, size, shape.value_dim) if apart else own
                caches[number] = PagedCache(own, of_values[..., : shape.value_dim], group_of[number], apart)
        return cls(lanes, [caches[number] for number in sorted(caches)])

    def copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies whole blocks, in which all lanes are."""
        for lane in self.lanes:
            lane[targets] = lane[sources]

    @property
    def spare_bytes(self) -> int:
        """The bytes of the block that no table has."""
        return sum(lane[-1].nbytes for lane in self.lanes)

    @property
    def size_bytes(self) -> int:
        """The bytes of the blocks that tables have."""
        return sum(lane.nbytes for lane in self.lanes) - self.spare_bytes


def _blocks(lane: torch.Tensor, heads: int, block_size: int, width: int) -> torch.Tensor:
    """Returns the first numbers of each block of a lane as [blocks, G, block_size, d]."""
    return lane[:, : heads * block_size * width].view(-1, heads, block_size, width)
