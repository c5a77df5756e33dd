"""The memory of a program's KV caches on torch tensors."""

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.reference.attention import LayerCache
from appliance.program.operators import StepProgram

KV_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def kv_caches(program: StepProgram, execution: Execution) -> tuple[list[torch.Tensor], list[LayerCache], list[int]]:
    """Returns the lanes of the blocks, first the keys [num_blocks, ...] of one and then its values; and for each cache
    its part of them, and its group."""
    limits, layout = execution.limits, program.kv_layout()
    dtype = KV_DTYPES[execution.numerics.kv_dtype]
    lanes: list[torch.Tensor] = []
    caches: dict[int, LayerCache] = {}
    for numbers in layout.lanes():
        shapes = [program.caches[number] for number in numbers]
        keys, values = (
            torch.zeros(limits.num_blocks, limits.block_size * width, dtype=dtype)
            for width in (
                max(shape.num_kv_heads * shape.key_dim for shape in shapes),
                max(shape.num_kv_heads * sum(shape.stored_dims[1:]) for shape in shapes),
            )
        )
        lanes += [keys, values]
        for number, shape in zip(numbers, shapes, strict=True):
            size = (limits.block_size, shape.num_kv_heads)
            own = _head(keys, *size, shape.key_dim)
            of_values = own[..., : shape.value_dim] if shape.values_in_keys else _head(values, *size, shape.value_dim)
            caches[number] = LayerCache(own, of_values)
    groups = {cache: number for number, group in enumerate(layout.groups) for cache in group.caches}
    return lanes, [caches[number] for number in sorted(caches)], [groups[number] for number in sorted(groups)]


def _head(lane: torch.Tensor, block_size: int, num_heads: int, width: int) -> torch.Tensor:
    """Returns the first numbers of each block of a lane as [num_blocks, block_size, G, d]."""
    return lane[:, : block_size * num_heads * width].view(-1, block_size, num_heads, width)
