"""The paged caches of keys and values on the device."""

from dataclasses import dataclass

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.gpu.device import DTYPES, Device
from appliance.kernels.reference.kv_codes import CODE_DTYPES, to_codes, turned
from appliance.program.caches import KvShape, kv_scale_bytes
from appliance.program.operators import StepProgram

KV_DTYPES = {**DTYPES, **CODE_DTYPES}


@dataclass(frozen=True, slots=True)
class PagedCache:
    """The cache of one attention block. keys: [blocks + 1, G, block_size, d]; values: [blocks + 1, G, block_size, e],
    or a view of the keys' first columns. Tokens without a slot are written to the last block, which no table has.

    key_scales, value_scales: f32 [blocks + 1, G, block_size] if keys and values are codes of 8 bits, else None. Keys
    of int8 are turned (reference.kv_codes)."""

    keys: torch.Tensor
    values: torch.Tensor
    group: int  # whose block tables it uses
    has_values: bool  # values are memory of their own
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def is_turned(self) -> bool:
        return self.keys.dtype == torch.int8

    def write(self, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None) -> None:
        """Stores k [T, G, d] and v [T, G, e] at slots int32 [T]; those of negative slots go where nobody reads."""
        slots = torch.where(slot_mapping < 0, (len(self.keys) - 1) * self.block_size, slot_mapping).long()
        place = slots // self.block_size, slice(None), slots % self.block_size
        keys = turned(k.float()) if self.is_turned else k
        for cache, scales, new in ((self.keys, self.key_scales, keys), (self.values, self.value_scales, v)):
            if new is None:
                continue
            if scales is None:
                cache[place] = new.to(cache.dtype)
            else:
                codes, scales[place] = to_codes(new.float(), cache.dtype)
                cache.view(torch.uint8)[place] = codes.view(torch.uint8)

    def gather(self, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys f32 [length, G, d] and values [length, G, e] of the sequence of a block table."""
        blocks = table[: -(-length // self.block_size)].long()
        keys, values = (
            _numbers(cache, scales, blocks).transpose(1, 2).flatten(0, 1)[:length]
            for cache, scales in ((self.keys, self.key_scales), (self.values, self.value_scales))
        )
        return turned(keys) if self.is_turned else keys, values


def _numbers(cache: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor) -> torch.Tensor:
    """Returns f32 [blocks, G, block_size, d]."""
    if scales is None:
        return cache[blocks].float()
    codes = cache.view(torch.uint8)[blocks].view(cache.dtype)
    return codes.float() * scales[blocks].unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """lanes: uint8 [blocks + 1, bytes], the memory of all caches, a pair of keys and values for each lane of a block:
    numbers, and behind them the scales of codes."""

    lanes: list[torch.Tensor]
    caches: list[PagedCache]  # by their number in the program

    @classmethod
    def of(cls, program: StepProgram, execution: Execution, device: Device) -> "CacheMemory":
        """Allocates the memory. A lane is as wide as the widest cache that any group has in it."""
        limits, layout = execution.limits, program.kv_layout()
        group_of = {cache: number for number, group in enumerate(layout.groups) for cache in group.caches}
        kv_dtype, size = execution.numerics.kv_dtype, limits.block_size
        dtype, scale_bytes = KV_DTYPES[kv_dtype], kv_scale_bytes(kv_dtype)
        lanes: list[torch.Tensor] = []
        caches: dict[int, PagedCache] = {}
        for numbers in layout.lanes():
            shapes = [program.caches[number] for number in numbers]
            widths = ([shape.key_dim for shape in shapes], [sum(shape.stored_dims[1:]) for shape in shapes])
            slots = (_slot_bytes(shapes, of, dtype.itemsize, scale_bytes) for of in widths)
            keys, values = (device.zeros(limits.num_blocks + 1, size * each, dtype=torch.uint8) for each in slots)
            lanes += [keys, values]
            for number, shape in zip(numbers, shapes, strict=True):
                caches[number] = _placed(shape, keys, values, size, dtype, group_of[number], has_scales=scale_bytes > 0)
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


def _slot_bytes(shapes: list[KvShape], widths: list[int], element_bytes: int, scale_bytes: int) -> int:
    """Returns the most bytes that a slot has in one of the caches, whose heads have these widths."""
    return max(
        shape.num_kv_heads * (width * element_bytes + scale_bytes) if width else 0
        for shape, width in zip(shapes, widths, strict=True)
    )


def _placed(
    shape: KvShape, keys: torch.Tensor, values: torch.Tensor, block_size: int, dtype: torch.dtype, group: int,
    *, has_scales: bool,
) -> PagedCache:  # fmt: skip
    """Returns the cache of a shape in the lanes of keys and values."""
    size = (shape.num_kv_heads, block_size)
    own, key_scales = _part(keys, size, shape.key_dim, dtype, has_scales=has_scales)
    if shape.values_in_keys:
        return PagedCache(own, own[..., : shape.value_dim], group, False, key_scales, key_scales)
    of_values, value_scales = _part(values, size, shape.value_dim, dtype, has_scales=has_scales)
    return PagedCache(own, of_values, group, True, key_scales, value_scales)


def _part(
    lane: torch.Tensor, size: tuple[int, int], width: int, dtype: torch.dtype, *, has_scales: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the first numbers of each block of a lane as [blocks, G, block_size, d], and the scales behind them as
    f32 [blocks, G, block_size] if there are any."""
    heads, block_size = size
    end = heads * block_size * width * dtype.itemsize
    numbers = lane[:, :end].view(dtype).view(-1, heads, block_size, width)
    if not has_scales:
        return numbers, None
    scales = lane[:, end : end + 4 * heads * block_size].view(torch.float32)
    return numbers, scales.view(-1, heads, block_size)
