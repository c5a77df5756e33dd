"""Formulas of the memory plan. Plain numbers in, bytes out; each names what it counts, so that a plan can show it."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.layers.rope import RopeSpec
from appliance.plan.types import KvGroupPlan
from appliance.program.arena import Liveness
from appliance.program.caches import KvShape
from appliance.program.slots import Extent, Slot

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


class StepSize(msgspec.Struct, frozen=True):
    """The size of the largest step."""

    num_tokens: int
    num_sampled: int
    num_threads: int


def padded(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def kv_groups(caches: Sequence[KvShape], dtype: str, kernels: KernelSetFacts) -> tuple[KvGroupPlan, ...]:
    """Caches of one shape and reach together, in the order of the first of each."""
    return tuple(_kv_group(shape, count, dtype, kernels) for shape, count in Counter(caches).items())


def _kv_group(shape: KvShape, count: int, dtype: str, kernels: KernelSetFacts) -> KvGroupPlan:
    """Keys and values of one token: 2 x layers x KV heads x head size (padded to the kernels' panel) x element."""
    width = padded(shape.head_dim, kernels.panel)
    return KvGroupPlan(
        num_layers=count,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        window=shape.window,
        bytes_per_token=2 * count * shape.num_kv_heads * width * ELEMENT_BYTES[dtype],
    )


def kv_block_bytes(groups: tuple[KvGroupPlan, ...], block_size: int, kernels: KernelSetFacts) -> int:
    """One block of every layer. The kernels pad the slots of a block to a panel as well."""
    return sum(group.bytes_per_token for group in groups) * padded(block_size, kernels.panel)


def rope_tables_bytes(ropes: Iterable[RopeSpec], max_model_len: int) -> int:
    """f32 [max_model_len, rotary dim] for each kind of rotation in use."""
    return 4 * max_model_len * sum(rope.rotary_dim for rope in ropes)


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
