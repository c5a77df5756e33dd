"""The memory of a rank's largest step."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.device_memory import step_items
from appliance.plan.inputs import PlanInputs
from appliance.plan.memory_needs import MemoryNeeds
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import (
    ELEMENT_BYTES,
    StepSize,
    activation_bytes,
    activation_formula,
)
from appliance.plan.types import (
    MemoryItem,
)
from appliance.plan.workspace import workspace_bytes, workspace_formula
from appliance.program.device_memory import StepLimits
from appliance.program.slots import Extent
from appliance.program.spreading import SpreadMemory


def items_of_step(inputs: PlanInputs, needs: MemoryNeeds) -> tuple[MemoryItem, ...]:
    """Returns the memory of activations and workspace in the largest step."""
    scheduler, program, precision = needs.scheduler, needs.program, needs.precision
    if program.kernels.uses_torch:
        programs = [program] if needs.adapters is None else [program, needs.adapters.program]
        is_processed = inputs.spec.model.logprobs_mode.startswith("processed")
        return step_items(
            programs, precision, step_limits_of(needs), _num_processors(inputs),
            draws_on_torch=is_processed, batch_invariant=needs.batch_invariant,
        )  # fmt: skip
    sampled = scheduler.max_num_sampled or scheduler.max_num_seqs
    step = StepSize(scheduler.max_num_batched_tokens, sampled, needs.num_threads, needs.context.limit)
    element = ELEMENT_BYTES[precision.activations]
    runs = [program] if needs.adapters is None else [program, needs.adapters.program]
    liveness = runs[-1].liveness  # slots live longer beside places for adapters, and one arena serves both programs
    quantize, kv_dtype = precision.quantize_activations, precision.kv_dtype
    activations = MemoryItem(
        name="activations",
        size_bytes=activation_bytes(liveness, step, element),
        formula=_about(program.kernels) + activation_formula(liveness, program.program.logits, step, element),
    )
    workspace = MemoryItem(
        name="workspace",
        size_bytes=max(workspace_bytes(each, step, quantize_activations=quantize, kv_dtype=kv_dtype) for each in runs),
        formula=workspace_formula(program, step),
    )
    met = (_spread_rows(program, step),) if program.num_replicas > 1 else ()
    if needs.program.num_ranks == 1:
        return activations, *met, workspace
    shared = MemoryItem(
        name="shared_activations",
        size_bytes=activation_bytes(runs[-1].shared_liveness, step, element),
        formula="columns that each rank computes and all read; once for all ranks",
    )
    return activations, shared, *met, workspace


def _spread_rows(program: PlannedProgram, step: StepSize) -> MemoryItem:
    rows = {Extent.TOKENS: step.num_tokens, Extent.SAMPLED: step.num_sampled}
    return MemoryItem(
        name="spread_rows",
        size_bytes=SpreadMemory.of(program.program, rows).share_bytes(program.num_replicas),
        formula=f"what experts read and give, for its own rows; {program.num_replicas} replicas share the memory",
    )


def step_limits_of(needs: MemoryNeeds) -> StepLimits:
    """Returns the sizes of the largest step."""
    scheduler = needs.scheduler
    sampled = scheduler.max_num_sampled or scheduler.max_num_seqs
    sizes = (scheduler.max_num_batched_tokens, scheduler.max_num_seqs, sampled)
    return StepLimits(*sizes, needs.context.limit, needs.block_size)


def _num_processors(inputs: PlanInputs) -> int | None:
    if inputs.profile.device == "cpu":
        return None
    return max((accelerator.num_units for accelerator in inputs.facts.accelerators), default=1)


def _about(kernels: KernelSetFacts) -> str:
    return "" if kernels.runs == "programs" else "about, as torch allocates them while it runs: "
