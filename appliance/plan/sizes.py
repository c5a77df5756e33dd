"""Formulas of the memory plan. Plain numbers in, bytes out; each names what it counts, so that a plan can show it."""

from dataclasses import dataclass
from typing import NamedTuple

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.config import ConfigFacts
from appliance.checkpoint.facts import AttentionGroup, Geometry
from appliance.plan.types import KvGroupPlan, PrecisionPlan, WeightPlan

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
ROW_BYTES = 1024  # kernels/cpu/prepared.h: a row of a prepared block
LINE_FLOATS = 16  # of a line of the caches
ATTENTION_ROWS = 48  # kernels/cpu/attention_parts.h: query rows of a part
PARTIALS_PER_THREAD = 32  # kernels/cpu/attention_parts.cpp: results of segments, each of as many rows
GATED_SUMS_BYTES = 504 * 2 * 4 * 16 * 4  # kernels/cpu/linear.h: f32 of a block of rows and four panels of each half
GPU_SPLITS = 8  # parts of a long sequence that attend at the same time


@dataclass(frozen=True, slots=True)
class Step:
    """The largest step."""

    num_tokens: int
    num_sampled: int
    num_threads: int


def padded(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def kv_group(group: AttentionGroup, dtype: str, kernels: KernelSetFacts) -> KvGroupPlan:
    """Keys and values of one token: 2 x layers x KV heads x head size (padded to the kernels' panel) x element."""
    width = padded(group.head_dim, kernels.panel)
    return KvGroupPlan(
        num_layers=len(group.layers),
        num_kv_heads=group.num_kv_heads,
        head_dim=group.head_dim,
        window=group.window,
        bytes_per_token=2 * len(group.layers) * group.num_kv_heads * width * ELEMENT_BYTES[dtype],
    )


def kv_block_bytes(groups: tuple[KvGroupPlan, ...], block_size: int, kernels: KernelSetFacts) -> int:
    """One block of every layer. The kernels pad the slots of a block to a panel as well."""
    return sum(group.bytes_per_token for group in groups) * padded(block_size, kernels.panel)


def rope_tables_bytes(config: ConfigFacts | None, max_model_len: int) -> int:
    """f32 [max_model_len, rotary dim] for each kind of rotation in use."""
    if config is None:
        return 0
    ropes = {str(layer.rope): layer.rope for layer in config.layers if layer.rope}
    width = sum(round(config.head_dim * rope.partial_factor) for rope in ropes.values())
    return width * 4 * max_model_len


def token_width(geometry: Geometry, *, gated: bool, post_norms: bool) -> int:
    """Floats a token across the slots of layers/decoder.py, which all layers share and which live at the same time:
    hidden, normed, branch (and post_normed) [D]; qkv [(H + 2 G) d]; attention [H d]; gate_up [2 I]; inner [I]."""
    hidden = geometry.hidden_size * (4 if post_norms else 3)
    heads = (2 * geometry.num_heads + 2 * geometry.num_kv_heads) * geometry.head_dim
    return hidden + heads + geometry.intermediate_size * (3 if gated else 1)


def sampled_width(geometry: Geometry) -> int:
    """Floats a sampled row when the logits are computed and nothing else lives: the normed row [D] and logits [V]."""
    return geometry.hidden_size + geometry.vocab_size


class InputForm(NamedTuple):
    """How Linears of one form read their input."""

    element_bytes: int
    group_size: int = 0  # columns a scale; 0 for floats
    sub_group_size: int | None = None


def prepared_bytes(columns: int, form: InputForm, rows: int) -> int:
    """The input of a Linear as kernels read it (kernels/cpu/prepared.h): blocks of 1 KiB a row, three floats a group of
    columns, and two bytes a sub-group. Of these last many rows take an odd number of lines of the caches."""
    blocks = -(-columns * form.element_bytes // ROW_BYTES)
    groups = -(-columns // form.group_size) if form.group_size else 0
    sums = form.group_size // form.sub_group_size if form.sub_group_size else 0
    stride = rows if rows <= LINE_FLOATS else (-(-rows // LINE_FLOATS) | 1) * LINE_FLOATS
    return rows * blocks * ROW_BYTES + stride * groups * (12 + 2 * sums)


def workspace_bytes(
    geometry: Geometry, precision: PrecisionPlan, kernels: KernelSetFacts, step: Step, *, gated: bool
) -> int:
    """On a CPU the widest prepared input, what a gated Linear prepares for the next, and for attention each thread's
    scratch and what rows hand on (kernels/cpu/attention.cpp) or in its place each thread's sums of gated Linears; on a
    GPU the partial results of attention split over a sequence."""
    if kernels.name == "reference":
        return 0
    head_dim = max(group.head_dim for group in geometry.groups)
    if kernels.device != "cpu":
        return step.num_sampled * geometry.num_heads * GPU_SPLITS * (head_dim + 2) * 4
    forms = {_input_form(plan, precision, kernels) for plan in precision.weights if plan.role != "other"}

    def prepared(*columns: int) -> int:
        sizes = (prepared_bytes(max(columns), form, step.num_tokens) for form in forms)
        return padded(max(sizes, default=0), 4096)

    of_block, inner = (geometry.hidden_size, geometry.num_heads * geometry.head_dim), geometry.intermediate_size
    inputs = prepared(*of_block) + prepared(inner) if gated else prepared(*of_block, inner)
    width = padded(head_dim, kernels.panel)
    queries = ATTENTION_ROWS * ROW_BYTES * -(-width * 4 // ROW_BYTES)
    state = ATTENTION_ROWS * (width + 2) * 4
    scratch = padded(queries + 2 * ATTENTION_ROWS * ROW_BYTES + 2 * state, 4096)
    partials = PARTIALS_PER_THREAD * state
    carried = step.num_sampled * geometry.num_heads * (width + kernels.panel) * 4
    return inputs + max(step.num_threads * (scratch + partials) + carried, step.num_threads * GATED_SUMS_BYTES)


def workspace_formula(kernels: KernelSetFacts, step: Step) -> str:
    if kernels.device != "cpu":
        return f"attention of {step.num_sampled:,} sequences in {GPU_SPLITS} parts"
    scratch = f"scratch of {step.num_threads} threads and {step.num_sampled:,} sequences"
    return f"prepared inputs of {step.num_tokens:,} tokens, {scratch}"


def _input_form(plan: WeightPlan, precision: PrecisionPlan, kernels: KernelSetFacts) -> InputForm:
    if plan.group_size is not None and precision.quantize_activations:
        return InputForm(kernels.integer_activation_bytes, plan.group_size, plan.sub_group_size)
    return InputForm(4)
