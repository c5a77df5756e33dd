"""The memory of a program's KV caches on torch tensors."""

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.reference.attention import LayerCache
from appliance.kernels.reference.kv_codes import CODE_DTYPES
from appliance.program.caches import KvShape, kv_scale_bytes
from appliance.program.operators import StepProgram

KV_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, **CODE_DTYPES}


def kv_caches(program: StepProgram, execution: Execution) -> tuple[list[torch.Tensor], list[LayerCache], list[int]]:
    """Returns the lanes of the blocks, first the keys [num_blocks, bytes] of one and then its values; and for each
    cache its part of them, and its group."""
    limits, layout = execution.limits, program.kv_layout()
    kv_dtype = execution.numerics.kv_dtype
    dtype, scale_bytes = KV_DTYPES[kv_dtype], kv_scale_bytes(kv_dtype)
    lanes: list[torch.Tensor] = []
    caches: dict[int, LayerCache] = {}
    for numbers in layout.lanes():
        shapes = [program.caches[number] for number in numbers]
        widths = ([shape.key_dim for shape in shapes], [sum(shape.stored_dims[1:]) for shape in shapes])
        keys, values = (
            torch.zeros(limits.num_blocks, limits.block_size * size, dtype=torch.uint8)
            for size in (_slot_bytes(shapes, of, dtype.itemsize, scale_bytes) for of in widths)
        )
        lanes += [keys, values]
        for number, shape in zip(numbers, shapes, strict=True):
            caches[number] = _layer(shape, keys, values, limits.block_size, dtype, has_scales=scale_bytes > 0)
    groups = {cache: number for number, group in enumerate(layout.groups) for cache in group.caches}
    return lanes, [caches[number] for number in sorted(caches)], [groups[number] for number in sorted(groups)]


def _slot_bytes(shapes: list[KvShape], widths: list[int], element_bytes: int, scale_bytes: int) -> int:
    """Returns the most bytes that a slot has in one of the caches, whose heads have these widths."""
    return max(
        shape.num_kv_heads * (width * element_bytes + scale_bytes) if width else 0
        for shape, width in zip(shapes, widths, strict=True)
    )


def _layer(
    shape: KvShape, keys: torch.Tensor, values: torch.Tensor, block_size: int, dtype: torch.dtype, *, has_scales: bool
) -> LayerCache:
    size = (block_size, shape.num_kv_heads)
    own, key_scales = _part(keys, size, shape.key_dim, dtype, has_scales=has_scales)
    if shape.values_in_keys:
        return LayerCache(own, own[..., : shape.value_dim], key_scales, key_scales)
    of_values, value_scales = _part(values, size, shape.value_dim, dtype, has_scales=has_scales)
    return LayerCache(own, of_values, key_scales, value_scales)


def _part(
    lane: torch.Tensor, size: tuple[int, int], width: int, dtype: torch.dtype, *, has_scales: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the first numbers of each block of a lane as [num_blocks, block_size, G, width], and the scales behind
    them as [num_blocks, block_size, G] if there are any."""
    block_size, num_heads = size
    end = block_size * num_heads * width * dtype.itemsize
    numbers = lane[:, :end].view(dtype).view(-1, block_size, num_heads, width)
    if not has_scales:
        return numbers, None
    scales = lane[:, end : end + 4 * block_size * num_heads].view(torch.float32)
    return numbers, scales.view(-1, block_size, num_heads)
