"""Pass `graphs`: which steps run as graphs, and to which sizes they are padded."""

from collections.abc import Sequence

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import ELEMENT_BYTES
from appliance.plan.types import GraphMode, GraphsPlan, MemoryItem, PrecisionPlan, SchedulerPlan
from appliance.program.slots import Extent

RULE = "plan/graphs"
MOST_BY_DEFAULT = 512  # as vLLM
NODE_BYTES = 4096  # about, of the driver's record of a kernel with its arguments
_SECTION = "compilation"
_SIZES = ("cudagraph_capture_sizes", "cuda_graph_sizes")  # fields that may name sizes
# The values of fields that ask for no graphs.
_NOTHING: dict[str, tuple[object, ...]] = {
    "cudagraph_mode": (AUTO, "NONE"), "max_cudagraph_capture_size": (AUTO,), "max_seq_len_to_capture": (AUTO,),
    **dict.fromkeys(_SIZES, ([],)),
}  # fmt: skip


def plan_graphs(inputs: PlanInputs, kernels: KernelSetFacts, scheduler: SchedulerPlan, ledger: Ledger) -> GraphsPlan:
    """Refuses graphs where the kernel set has none, or layers are streamed, and sizes that no step has."""
    if kernels.has_graphs and inputs.spec.hardware.memory.cpu_offload:
        _refuse_all(inputs, "layers that hardware.memory.cpu_offload streams run operator by operator", ledger)
        reason = "layers are streamed: each step waits for copies, beside which its launches count for little"
        return GraphsPlan(mode=ledger.decide("graphs.mode", "NONE", "computed", reason))
    if not kernels.has_graphs:
        _refuse_all(inputs, f"{kernels.name} has none: it gives a step to the device by one call", ledger)
        level, is_said = inputs.spec.compilation.level, ledger.source_of(f"{_SECTION}.level") != "default"
        reason = f"{kernels.name} gives a step to the device by one call"
        reason += f"; compilation.level {level} changes nothing there" if is_said else ""
        return GraphsPlan(mode=ledger.decide("graphs.mode", "NONE", "hardware", reason))
    mode = _mode(inputs, ledger)
    if mode == "NONE":
        return GraphsPlan(mode=mode)
    sizes = _sizes(inputs, scheduler, ledger)
    decode = [] if mode == "PIECEWISE" else [size for size in sizes if size <= scheduler.max_num_seqs]
    return GraphsPlan(
        mode=mode,
        decode_sizes=tuple(decode),
        token_sizes=() if mode == "FULL_DECODE_ONLY" else tuple(sizes),
        max_seq_len=_max_seq_len(inputs, ledger),
    )


def graphs_item(
    graphs: GraphsPlan,
    programs: Sequence[PlannedProgram],
    precision: PrecisionPlan,
    scheduler: SchedulerPlan,
) -> tuple[MemoryItem, ...]:
    """Returns what graphs take of a GPU: a record of each kernel, and results that one graph at a time has in a pool
    of memory that all share. Both are estimates. programs: the model's, and the one with places for adapters, whose
    steps are captured apart."""
    program = programs[0]
    count = graphs.num_graphs
    if not count or program.kernels.device == "cpu":
        return ()
    nodes = count * sum(len(each.program.operators) for each in programs) * NODE_BYTES
    largest = max(*graphs.decode_sizes, *graphs.token_sizes)
    rows = {
        Extent.TOKENS: largest,
        Extent.SAMPLED: min(largest, scheduler.max_num_sampled or scheduler.max_num_seqs),
    }
    element = ELEMENT_BYTES[precision.activations]
    pool = 2 * element * max(rows[slot.extent] * slot.width for slot in program.program.slots)
    twice = " with adapters and without" if len(programs) > 1 else ""
    kernels = f"{count} sizes{twice} x {format_size(nodes // count)} of kernels"
    formula = f"about: {kernels}, and a pool of {format_size(pool)}"
    return (MemoryItem(name="graphs", size_bytes=nodes + pool, formula=formula),)


def _refuse_all(inputs: PlanInputs, why: str, ledger: Ledger) -> None:
    for name, without in _NOTHING.items():
        value, path = getattr(inputs.spec.compilation, name), f"{_SECTION}.{name}"
        if value not in without:
            ledger.refuse(path, RULE, f"{path} asks for graphs, and {why}", hint=f"remove {path}")


def _max_seq_len(inputs: PlanInputs, ledger: Ledger) -> int | None:
    path, wanted = f"{_SECTION}.max_seq_len_to_capture", inputs.spec.compilation.max_seq_len_to_capture
    return None if wanted == AUTO else ledger.take("graphs.max_seq_len", path, int(wanted))


def _mode(inputs: PlanInputs, ledger: Ledger) -> GraphMode:
    spec, path = inputs.spec.compilation, "graphs.mode"
    if spec.enforce_eager:
        return ledger.take(path, f"{_SECTION}.enforce_eager", "NONE", "enforce_eager")
    if spec.cudagraph_mode == "FULL":
        reason = "attention of prompts is in no graph, as its tiles differ from step to step: this is what FULL can be"
        return ledger.decide(path, "FULL_AND_PIECEWISE", "spec", reason)
    if spec.cudagraph_mode != "auto":
        return ledger.take(path, f"{_SECTION}.cudagraph_mode", spec.cudagraph_mode)
    if spec.level == 0:
        return ledger.take(path, f"{_SECTION}.level", "NONE", "compilation.level 0")
    reason = "decodes are one graph each, other steps graphs between attention; captured behind the first answers"
    return ledger.decide(path, "FULL_AND_PIECEWISE", "default", reason)


def _sizes(inputs: PlanInputs, scheduler: SchedulerPlan, ledger: Ledger) -> list[int]:
    """Returns the sizes in rising order; those that a spec names are exactly these."""
    spec, path = inputs.spec.compilation, "graphs.token_sizes"
    named = [name for name in _SIZES if getattr(spec, name)]
    several = [name for name in named if name == _SIZES[0] or len(getattr(spec, name)) > 1]
    if len(named) > 1:
        message = f"{_SECTION}.{named[0]} and {_SECTION}.{named[1]} both say which sizes are captured"
        ledger.refuse(f"{_SECTION}.{named[1]}", RULE, message, hint=f"remove {_SECTION}.{named[1]}")
    if several:
        return _named_sizes(inputs, f"{_SECTION}.{several[0]}", getattr(spec, several[0]), scheduler, ledger)
    most = _most(inputs, scheduler, ledger)
    sizes = [1, 2, 4, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]
    sizes = sorted({*(size for size in sizes if size <= most), min(scheduler.max_num_seqs, most)})
    return list(ledger.decide(path, tuple(sizes), "default", "vLLM's steps, and max_num_seqs itself"))


def _most(inputs: PlanInputs, scheduler: SchedulerPlan, ledger: Ledger) -> int:
    """Returns the largest size that is captured."""
    spec, budget = inputs.spec.compilation, scheduler.max_num_batched_tokens
    paths = {f"{_SECTION}.max_cudagraph_capture_size": spec.max_cudagraph_capture_size}
    if len(spec.cuda_graph_sizes) == 1:
        paths[f"{_SECTION}.cuda_graph_sizes"] = spec.cuda_graph_sizes[0]
    for path, value in paths.items():
        if value != AUTO:
            _check_budget(path, int(value), budget, ledger)
            return min(int(value), budget)
    return min(2 * scheduler.max_num_seqs, MOST_BY_DEFAULT, budget)


def _named_sizes(
    inputs: PlanInputs, path: str, sizes: list[int], scheduler: SchedulerPlan, ledger: Ledger
) -> list[int]:
    most, largest = inputs.spec.compilation.max_cudagraph_capture_size, max(sizes)
    _check_budget(path, largest, scheduler.max_num_batched_tokens, ledger)
    if most not in (AUTO, largest):
        message = f"the largest of {path} is {largest:,}, and max_cudagraph_capture_size says {most:,}"
        ledger.refuse(f"{_SECTION}.max_cudagraph_capture_size", RULE, message, hint="remove one of the two")
    return list(ledger.take("graphs.token_sizes", path, tuple(sorted(set(sizes)))))


def _check_budget(path: str, size: int, budget: int, ledger: Ledger) -> None:
    if size > budget:
        message = f"{path} has {size:,} tokens, and a step has {budget:,} at most"
        ledger.refuse(path, RULE, message, allowed=f"1 to {budget}", hint="write less, or more max_num_batched_tokens")
