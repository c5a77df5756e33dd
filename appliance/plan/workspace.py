"""What kernels keep beside activations while they run. Mirrors the native sources; sizes come from the program."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from appliance.catalog.formats import WeightForm
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import StepSize, padded
from appliance.program.adapters import AdapterExperts, AdapterLinear
from appliance.program.attention import HeadLinear
from appliance.program.caches import KV_BYTES, kv_scale_bytes
from appliance.program.operators import PagedAttention, WholeAttention
from appliance.program.routing import Experts, SpreadExperts
from appliance.program.slots import Extent
from appliance.program.states import GatedDelta, ShortConv, StateSpace

ROW_BYTES = 1024  # kernels/cpu/prepared.h: a row of a prepared block
ACTIVATION_GROUP = 256  # kernels/cpu/prepared.h: columns that share a scale at most
LINE_FLOATS = 16  # of a line of the caches
ATTENTION_ROWS = 48  # kernels/cpu/attention_parts.h: query rows of a part
PARTIALS_PER_THREAD = 32  # kernels/cpu/attention_parts.cpp: results of segments, each of as many rows
GATED_SUMS_BYTES = 504 * 2 * 4 * 16 * 4  # kernels/cpu/linear.h: f32 of a block of rows and four panels of each half
LEAST_PAIRS = 256  # kernels/cpu/experts.h, head_linear.h: of a row and an expert or head, worked on at a time
CHUNK_SLOTS = 256  # kernels/cpu/attention_scratch.h: keys of a chunk, whose values a thread copies if they are columns
WHOLE_ROWS, WHOLE_KEYS, WHOLE_COLUMNS = 6, 64, 32  # kernels/cpu/whole_attention.cpp: a tile, and what its sides fill
DELTA_TOKENS = 32  # kernels/cpu/gated_delta.cpp: tokens whose factors are made together
DELTA_COLUMNS = 64  # of a tile of values, at most
MODELLING_SCORES_BYTES = 1 << 26  # kernels/modelling/attention.py: f32 scores, before and after the softmax


class InputForm(NamedTuple):
    """How the input of a Linear is prepared. No groups: f32 as it is."""

    element_bytes: int
    group_size: int | None = None
    sub_group_size: int | None = None


def workspace_bytes(program: PlannedProgram, step: StepSize, *, quantize_activations: bool, kv_dtype: str) -> int:
    """Returns the bytes that kernels use beside the arena.

    On a CPU: the largest prepared input, what a gated Linear prepares for the next, and for attention each thread's
    scratch and what rows hand on (kernels/cpu/attention.cpp) or in its place each thread's sums of gated Linears or
    factors of gated delta rules; and vectors of operators with states. Of sets on torch: see plan.device_memory.
    """
    kernels = program.kernels
    if kernels.name == "reference":
        return 0
    if kernels.runs == "models":
        return MODELLING_SCORES_BYTES
    attention = [op for op in program.operators.get(PagedAttention, ()) if isinstance(op, PagedAttention)]
    num_heads = max((op.num_heads for op in attention), default=0)
    value_dim = max((op.value_width for op in attention), default=0)
    inputs = _inputs_bytes(program, step, quantize_activations=quantize_activations)
    width = padded(value_dim, kernels.panel)
    queries = ATTENTION_ROWS * ROW_BYTES * -(-max((op.head_dim for op in attention), default=0) * 4 // ROW_BYTES)
    state = ATTENTION_ROWS * (width + 2) * 4
    shared = max((padded(op.value_width, kernels.panel) for op in attention if op.values_in_keys), default=0)
    values = CHUNK_SLOTS * shared * KV_BYTES[kv_dtype]
    codes = _codes_bytes(attention, kv_dtype, width)
    scratch = padded(queries + 2 * ATTENTION_ROWS * ROW_BYTES + values + codes + 2 * state, 4096)
    partials = PARTIALS_PER_THREAD * state
    carried = step.num_sampled * num_heads * (width + kernels.panel) * 4
    adapted = (op for op in program.operators.get(AdapterExperts, ()) if isinstance(op, Experts))
    mixtures = (*program.mixtures, *adapted)
    experts = (_experts_bytes(op, program, step, quantize_activations=quantize_activations) for op in mixtures)
    heads = (
        _head_linear_bytes(op, program, step, quantize_activations=quantize_activations)
        for op in program.operators.get(HeadLinear, ())
        if isinstance(op, HeadLinear)
    )
    attending = step.num_threads * (scratch + partials) + carried if attention else 0
    whole = step.num_threads * _whole_attention_bytes(program, step)
    deltas = step.num_threads * _delta_bytes(program)
    sums = step.num_threads * GATED_SUMS_BYTES
    largest = max(attending, whole, sums, deltas, _adapter_bytes(program, step), *experts, *heads)
    return inputs + _kept_bytes(program) + largest


def _adapter_bytes(program: PlannedProgram, step: StepSize) -> int:
    """Returns what the first product of an adapter hands to the second (kernels/cpu/adapters.cpp)."""
    rows = {Extent.TOKENS: step.num_tokens, Extent.SAMPLED: step.num_sampled}
    places = (op for op in program.operators.get(AdapterLinear, ()) if isinstance(op, AdapterLinear))
    return max((4 * rows[op.x.slot.extent] * len(op.parts) * op.max_rank for op in places), default=0)


def _codes_bytes(attention: Iterable[PagedAttention], kv_dtype: str, width: int) -> int:
    """Returns a thread's scales of a chunk of codes of 8 bits, and for int8 the sums and factors of its rows
    (kernels/cpu/attention_scratch.h)."""
    if not kv_scale_bytes(kv_dtype):
        return 0
    heads = max((min(op.num_kv_heads, ATTENTION_ROWS) for op in attention), default=0)
    sums = ATTENTION_ROWS * (width + 2) if kv_dtype == "int8" else 0
    return 4 * (2 * heads * CHUNK_SLOTS + sums)


def _kept_bytes(program: PlannedProgram) -> int:
    """Returns the bytes of vectors that operators with states keep in another order (kernels/cpu/states.h)."""
    convolutions = (op for op in program.operators.get(ShortConv, ()) if isinstance(op, ShortConv))
    spaces = (op for op in program.operators.get(StateSpace, ()) if isinstance(op, StateSpace))
    taps = sum(op.kernel_size * op.x.width for op in convolutions)
    return 4 * (taps + sum(math.prod(op.state_shape) for op in spaces if op.by_state))


def _delta_bytes(program: PlannedProgram) -> int:
    """Returns the bytes of a thread's factors of tokens and of its tile (kernels/cpu/gated_delta.cpp)."""
    deltas = (op for op in program.operators.get(GatedDelta, ()) if isinstance(op, GatedDelta))
    key_dim = max((op.state_shape[1] for op in deltas), default=0)
    factors = DELTA_TOKENS * (4 * padded(key_dim, LINE_FLOATS) + 3)
    return 4 * (factors + key_dim * DELTA_COLUMNS) if key_dim else 0


def _whole_attention_bytes(program: PlannedProgram, step: StepSize) -> int:
    """Returns a thread's copy of a head's keys and values, and the scores and queries of a tile of rows
    (kernels/cpu/whole_attention.cpp)."""
    length = min(step.longest, step.num_tokens)
    sizes = (
        padded(length, WHOLE_KEYS) * (op.head_dim + WHOLE_ROWS)
        + length * padded(op.head_dim, WHOLE_COLUMNS)
        + WHOLE_ROWS * op.head_dim
        for op in program.operators.get(WholeAttention, ())
        if isinstance(op, WholeAttention)
    )
    return padded(4 * max(sizes, default=0), 64)


def workspace_formula(program: PlannedProgram, step: StepSize) -> str:
    kernels = program.kernels
    if kernels.runs == "models":
        return "scores of the queries that attend at a time"
    scratch = f"scratch of {step.num_threads} threads and {step.num_sampled:,} sequences"
    parts = [f"prepared inputs of {step.num_tokens:,} tokens", scratch]
    return ", ".join([*parts, *(["what experts make of them"] if program.mixtures else [])])


def prepared_bytes(columns: int, form: InputForm, rows: int) -> int:
    """The input of a Linear as kernels read it (kernels/cpu/prepared.h): blocks of 1 KiB a row, three floats a group of
    columns, and two bytes a sub-group. Of these last many rows take an odd number of lines of the caches."""
    blocks = -(-columns * form.element_bytes // ROW_BYTES)
    groups = -(-columns // form.group_size) if form.group_size else 0
    sums = form.group_size // form.sub_group_size if form.group_size and form.sub_group_size else 0
    stride = rows if rows <= LINE_FLOATS else (-(-rows // LINE_FLOATS) | 1) * LINE_FLOATS
    return rows * blocks * ROW_BYTES + stride * groups * (12 + 2 * sums)


def _experts_bytes(op: Experts, program: PlannedProgram, step: StepSize, *, quantize_activations: bool) -> int:
    """Returns the bytes of prepared rows, of pairs of a row and an expert, and of their results (cpu/experts.cpp)."""
    kernels = program.kernels
    rows = step.num_tokens if op.x.extent is Extent.TOKENS else step.num_sampled
    rows *= op.num_replicas if isinstance(op, SpreadExperts) else 1
    pairs = max(rows, min(rows * op.num_chosen, LEAST_PAIRS))

    def prepared(name: str, columns: int, count: int) -> int:
        form = _input_form(program.form(program.weights[name]), columns, kernels, quantize_activations)
        return padded(prepared_bytes(columns, form, count), LINE_FLOATS * 4)

    names = [op.up] if op.gate is None else [op.up, op.gate]
    inputs = sum(prepared(name, op.x.width, rows) + prepared(name, op.x.width, pairs) for name in names)
    made = 4 * pairs * (op.width * (2 if op.is_gated else 1) + op.out.width)
    numbers = 4 * (op.num_experts + 2 * rows * op.num_chosen)
    threads = 4 * step.num_threads * max(op.x.width, op.width)
    if isinstance(op, AdapterExperts):
        threads += 4 * op.max_rank * (pairs + 2 * step.num_threads)
    return inputs + prepared(op.down, op.width, pairs) + made + numbers + threads


def _head_linear_bytes(op: HeadLinear, program: PlannedProgram, step: StepSize, *, quantize_activations: bool) -> int:
    """Returns the bytes of prepared pairs of a row and a head (cpu/head_linear.cpp)."""
    rows, columns = step.num_tokens, op.x.width // op.num_heads
    form = _input_form(program.form(program.weights[op.weight]), columns, program.kernels, quantize_activations)
    return prepared_bytes(columns, form, max(rows, min(rows * op.num_heads, LEAST_PAIRS)))


def _inputs_bytes(program: PlannedProgram, step: StepSize, *, quantize_activations: bool) -> int:
    """Linears take turns in one place; what a gated activation prepares for the next Linear has another."""
    rows = {Extent.TOKENS: step.num_tokens, Extent.SAMPLED: step.num_sampled}
    largest = {False: 0, True: 0}  # by `follows_gates`
    for product in program.products:
        form = _input_form(product.form, product.columns, program.kernels, quantize_activations)
        size = prepared_bytes(product.columns, form, rows[product.extent])
        largest[product.follows_gates] = max(largest[product.follows_gates], size)
    return sum(padded(size, 4096) for size in largest.values())


def _input_form(form: WeightForm, columns: int, kernels: KernelSetFacts, quantize_activations: bool) -> InputForm:
    """Inputs of integer weights are rounded in the weight's groups, or in parts of a longer one."""
    if not form.has_integers or not quantize_activations:
        return InputForm(4)
    group_size = min(form.group_size or columns, ACTIVATION_GROUP)
    return InputForm(kernels.integer_activation_bytes, group_size, form.sub_group_size)
