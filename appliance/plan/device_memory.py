"""Part of pass `memory`: what a kernel set on torch keeps for a step beside weights and caches, and what torch takes
while a step runs. What the set allocates itself comes from the functions that it asks as well."""

from collections.abc import Iterator, Sequence

from appliance.base.units import format_size
from appliance.catalog.gpu_operators import FEW_ROWS, gpu_implementation
from appliance.plan.inputs import PlanInputs
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import ELEMENT_BYTES, StepSize, activation_formula
from appliance.plan.types import MemoryItem, PrecisionPlan
from appliance.plan.weight_memory import dense_bytes
from appliance.program.attention import HeadLinear
from appliance.program.device_memory import (
    LOGPROB_ROWS,
    RING_PIECE_BYTES,
    RING_PIECES,
    StepLimits,
    gather_bytes,
    input_bytes,
    kernel_bytes,
    place_slots,
    spare_block_bytes,
)
from appliance.program.operators import Linear, Operator, PagedAttention, StepProgram
from appliance.spec.rank_counts import ranks_here

LOGPROB_BYTES = 36  # of a logit, while log-probabilities are taken: two f64 forms, and a stable sort with its places
DRAW_BYTES = 64  # of a logit that torch filters and draws from: sorted logits, their places and masses in f64
ADJUSTED_BYTES = 9  # of a logit with masks, biases and penalties: two copies, and a mask
COLLECTIVES_BYTES = 1 << 29  # channels of NCCL or RCCL and their first-in first-out buffers
COPIES = 2  # of what an operator of torch makes: a result, and a step on the way to it


def step_items(
    programs: Sequence[PlannedProgram], precision: PrecisionPlan, limits: StepLimits, num_processors: int | None,
    *, draws_on_torch: bool, batch_invariant: bool = False,
) -> tuple[MemoryItem, ...]:  # fmt: skip
    """The items of the largest step. programs: the model's, and the one with places for adapters, if there is one.

    num_processors: of the GPU; None where no kernels run. draws_on_torch: filtered logits are asked for, which only
    torch makes.
    """
    first, last = programs[0], programs[-1]  # slots live longer beside places for adapters, and one arena serves both
    element = ELEMENT_BYTES[precision.activations]
    bare = [program.program for program in programs]
    arena = place_slots(last.program, limits, element).size_bytes
    size = StepSize(limits.num_tokens, limits.num_sampled, 1, limits.max_model_len)
    formula = activation_formula(last.liveness, last.program.logits, size, element)
    inputs = _input_bytes(first.program, limits, bare)
    spare = spare_block_bytes(first.program, limits.block_size, precision.kv_dtype)
    kernels = 0
    if num_processors is not None:
        rounds = precision.quantize_activations
        kernels = kernel_bytes(
            bare, limits, element, num_processors, batch_invariant=batch_invariant, rounds_inputs=rounds
        )
    gathered = gather_bytes(last.program, limits, element)
    embeds = _embeds_bytes(first.program, limits)
    parts = [
        f"a step's numbers {format_size(inputs)}",
        *([f"embeddings of prompts {format_size(embeds)}"] if embeds else []),
        *([f"a block that no table has {format_size(spare)}"] if spare else []),
        *([f"what kernels hand on {format_size(kernels)}"] if kernels else []),
        *([f"columns that ranks exchange {format_size(gathered)}"] if gathered else []),
    ]
    kept = inputs + embeds + spare + 4 * limits.num_sampled + kernels + gathered
    has_kernels = num_processors is not None
    return (
        MemoryItem(name="activations", size_bytes=arena, formula=f"{formula}; logits and routing in 4"),
        MemoryItem(name="workspace", size_bytes=kept, formula=", ".join(parts)),
        _temporaries(last, limits, element, has_kernels=has_kernels, draws_on_torch=draws_on_torch or not has_kernels),
    )


def host_items(programs: Sequence[PlannedProgram], limits: StepLimits) -> tuple[MemoryItem, ...]:
    """The host's memory from which a GPU copies by itself. programs: as for `step_items`."""
    inputs = _input_bytes(programs[0].program, limits, [program.program for program in programs])
    ring = RING_PIECES * RING_PIECE_BYTES
    formula = f"in memory that the device reads: a step's numbers {format_size(inputs)}, and while weights are loaded"
    formula += f" {RING_PIECES} pieces of {format_size(RING_PIECE_BYTES)}"
    return (MemoryItem(name="pinned", size_bytes=inputs + ring, formula=formula),)


def _input_bytes(program: StepProgram, limits: StepLimits, programs: Sequence[StepProgram]) -> int:
    groups = len(program.kv_layout().groups)
    has_states, has_adapters = bool(program.states), len(programs) > 1
    lists = _num_tile_lists(programs)
    return input_bytes(limits, groups, lists, has_states=has_states, has_adapters=has_adapters)


def _embeds_bytes(program: StepProgram, limits: StepLimits) -> int:
    """Returns the bytes of embeddings in f32, and of their tokens' places, where each token of a step has its own."""
    return 0 if program.embeds_width is None else 4 * limits.num_tokens * (program.embeds_width + 1)


def _num_tile_lists(programs: Sequence[StepProgram]) -> int:
    attention = (op for program in programs for op in program.operators if isinstance(op, PagedAttention))
    return len({(op.head_dim, op.value_width) for op in attention})


def _temporaries(
    program: PlannedProgram, limits: StepLimits, element: int, *, has_kernels: bool, draws_on_torch: bool
) -> MemoryItem:
    """The most that torch takes at once: in an operator, or while it samples."""
    vocabulary, rows = program.program.logits.width, limits.num_sampled
    drawing = rows * vocabulary * (DRAW_BYTES if draws_on_torch else ADJUSTED_BYTES)
    sampling = drawing + min(rows, LOGPROB_ROWS) * vocabulary * LOGPROB_BYTES
    largest = max(_operator_bytes(program, limits, element, has_kernels=has_kernels), default=(0, ""))
    what = "filters, draws and log-probabilities" if sampling >= largest[0] else largest[1]
    size = max(sampling, largest[0])
    return MemoryItem(name="temporaries", size_bytes=size, formula=f"at most, while torch runs: {what}")


def _operator_bytes(
    program: PlannedProgram, limits: StepLimits, element: int, *, has_kernels: bool
) -> Iterator[tuple[int, str]]:
    """Yields what torch takes in an operator: quantized matrices made dense, and results beside the arena."""
    for op in program.program.operators:
        name, by = type(op).__name__, gpu_implementation(type(op).__name__, with_triton=has_kernels)
        dense = sum(
            _dense_bytes(program, weight, element) for weight in op.named(op.matrices) if isinstance(op, Linear)
        )
        by_kernel = by == "triton" and not (isinstance(op, HeadLinear) and limits.num_tokens > FEW_ROWS)
        by_kernel |= by == "library"  # it has memory of its own (gather_bytes)
        made = 0 if by_kernel else COPIES * _slot_bytes(op, limits, 4 if by == "reference" else element)
        yield dense + made, f"{name} by {by}"


def _dense_bytes(program: PlannedProgram, name: str, element: int) -> int:
    """Returns the bytes of a quantized matrix as the vendor's library multiplies it; of a dense one none."""
    weight = program.weights.get(name)
    return 0 if weight is None else dense_bytes(program, weight, element)


def _slot_bytes(op: Operator, limits: StepLimits, element: int) -> int:
    return sum(limits.rows[slot.extent] * slot.width * element for slot in set(op.slots()))


def collectives_item(inputs: PlanInputs, parallel: ParallelPlan) -> tuple[MemoryItem, ...]:
    """What the library of collectives takes of a GPU for itself."""
    if inputs.profile.device == "cpu" or parallel.tensor * parallel.pipeline == 1:
        return ()
    formula = "about: buffers of the library between GPUs, which nobody has measured yet"
    return (MemoryItem(name="collectives", size_bytes=COLLECTIVES_BYTES, formula=formula),)


def device_bytes(inputs: PlanInputs) -> int:
    """Returns the memory of a rank's device: its even share of the host's on a CPU, else that of the smallest
    accelerator."""
    if inputs.profile.device == "cpu" or not inputs.facts.accelerators:
        parallel = inputs.spec.parallelism
        ranks = ranks_here(parallel) if inputs.profile.device == "cpu" else 1
        return inputs.facts.memory.limit_bytes // ranks
    return min(accelerator.memory_bytes for accelerator in inputs.facts.accelerators)
