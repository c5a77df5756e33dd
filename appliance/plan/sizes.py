"""Formulas of the memory plan. Plain numbers in, bytes out; each names what it counts, so that a plan can show it."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.layers.rope import RopeSpec
from appliance.plan.types import KvGroupPlan
from appliance.program.arena import Liveness
from appliance.program.caches import KV_BYTES, KvShape, kv_scale_bytes
from appliance.program.operators import StepProgram, WholeAttention
from appliance.program.slots import Extent, Slot

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # of activations


class StepSize(msgspec.Struct, frozen=True):
    """The size of the largest step."""

    num_tokens: int
    num_sampled: int
    num_threads: int
    longest: int  # tokens of a sequence


def padded(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class KvSizes(msgspec.Struct, frozen=True):
    """The bytes that one token takes in the caches of a program."""

    groups: tuple[KvGroupPlan, ...]
    lanes_per_token: int  # bytes of a token in all lanes of a block, each as wide as its widest cache


def kv_sizes(program: StepProgram, dtype: str, kernels: KernelSetFacts) -> KvSizes:
    """Returns the sizes; caches of one group and one shape count together, in the order of the first of each."""
    layout, shapes = program.kv_layout(), program.caches
    counts = Counter((number, shapes[cache]) for number, group in enumerate(layout.groups) for cache in group.caches)
    return KvSizes(
        tuple(
            KvGroupPlan(
                group=number,
                num_layers=count,
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.key_dim,
                window=shape.window,
                bytes_per_token=count * sum(_cache_bytes(shape, dtype, kernels)),
                value_dim=_other_value_dim(shape),
            )
            for (number, shape), count in counts.items()
        ),
        sum(
            max(of_caches)
            for lane in layout.lanes()
            for of_caches in zip(*(_cache_bytes(shapes[cache], dtype, kernels) for cache in lane), strict=True)
        ),
    )


def _other_value_dim(shape: KvShape) -> int | None:
    if shape.values_in_keys:
        return 0
    return None if shape.value_dim == shape.key_dim else shape.value_dim


def _cache_bytes(shape: KvShape, dtype: str, kernels: KernelSetFacts) -> tuple[int, int]:
    """Returns the bytes of one token's keys and of its values in one layer: KV heads x width (padded to the kernels'
    panel) x element, and in 8 bits a scale for each head. No bytes for values that are part of the keys."""
    keys, values = (
        shape.num_kv_heads * (padded(width, kernels.panel) * KV_BYTES[dtype] + kv_scale_bytes(dtype)) if width else 0
        for width in (*shape.stored_dims, 0)[:2]
    )
    return keys, values


def kv_block_bytes(lanes_per_token: int, block_size: int, kernels: KernelSetFacts) -> int:
    """Returns the bytes of all lanes of one block. The kernels pad the slots of a block to a panel as well."""
    return lanes_per_token * padded(block_size, kernels.panel)


def rope_tables_bytes(ropes: Iterable[RopeSpec], max_model_len: int) -> int:
    """f32 [max_model_len, rotary dim] for each kind of rotation in use."""
    return 4 * max_model_len * sum(rope.rotary_dim for rope in ropes)


def bias_tables_bytes(program: StepProgram, max_model_len: int) -> int:
    """f32 [heads, 2 * max_model_len - 1] for each table of position biases."""
    heads = {op.bias: op.num_heads for op in program.operators if isinstance(op, WholeAttention) and op.bias}
    return 4 * (2 * max_model_len - 1) * sum(heads.values())


def activation_bytes(liveness: Liveness, step: StepSize, element_bytes: int) -> int:
    """The arena of the program's slots in the largest step."""
    rows = {Extent.TOKENS: step.num_tokens, Extent.SAMPLED: step.num_sampled}
    return liveness.arena(lambda slot: element_bytes * slot.width * rows[slot.extent]).size_bytes


def activation_formula(liveness: Liveness, logits: Slot, step: StepSize, element_bytes: int) -> str:
    """Says how the size of the arena arises: slots of tokens and of sampled rows seldom live at the same time."""
    per_token, per_row = (liveness.peak(extent) for extent in (Extent.TOKENS, Extent.SAMPLED))
    what = "logits" if logits in per_row.slots else "last layer"
    tokens = f"{step.num_tokens:,} tokens x {per_token.width:,}"
    rows = f"{step.num_sampled:,} rows x {per_row.width:,} ({what})"
    return f"the larger of {tokens} and {rows}, x {element_bytes} bytes"
