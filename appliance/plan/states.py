"""Part of pass `memory`: the slots of recurrent states, for running sequences and for kept prefixes."""

import msgspec

from appliance.base.units import format_size
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.types import MemoryItem
from appliance.program.operators import StepProgram
from appliance.program.state_slots import num_slots

DRAFT_STATES = 16
SNAPSHOTS_PER_SEQUENCE = 2  # where it parts from prompts before it, and its end
MOST_OF_MEMORY = 8  # snapshots take at most an eighth of what is left


class PlannedStates(msgspec.Struct, frozen=True):
    """None for a program without states, which has no item either."""

    num_snapshots: int | None = None
    num_draft_states: int | None = None
    items: tuple[MemoryItem, ...] = ()


def plan_states(
    inputs: PlanInputs, program: StepProgram, max_num_seqs: int, left: int, ledger: Ledger
) -> PlannedStates:
    """Decides how many snapshots are kept. left: the bytes that weights and activations leave."""
    _take_dtypes(inputs, program, ledger)
    if not program.states:
        _refuse_snapshots(inputs, ledger)
        _refuse_draft_states(inputs, ledger)
        return PlannedStates()
    size = program.state_bytes
    num_snapshots = _num_snapshots(inputs, size, max_num_seqs, left, ledger)
    num_draft_states = _num_draft_states(inputs, size, left - num_slots(max_num_seqs, num_snapshots) * size, ledger)
    slots = f"{max_num_seqs} sequences + 1 spare + {num_snapshots} snapshots"
    if num_draft_states:
        slots += f" + {num_draft_states} before drafts"
    item = MemoryItem(
        name="states",
        size_bytes=num_slots(max_num_seqs, num_snapshots, num_draft_states) * size,
        formula=f"({slots}) x {format_size(size)}",
    )
    return PlannedStates(num_snapshots, num_draft_states, (item,))


def _take_dtypes(inputs: PlanInputs, program: StepProgram, ledger: Ledger) -> None:
    """Says that states are float32, where the spec asks for that."""
    cache = inputs.spec.cache
    for name, wanted in (
        ("mamba_cache_dtype", cache.mamba_cache_dtype), ("mamba_ssm_cache_dtype", cache.mamba_ssm_cache_dtype),
    ):  # fmt: skip
        if wanted != AUTO:
            reason = (
                "in every kernel set" if program.states else "changes nothing: this model keeps no recurrent states"
            )
            ledger.take(f"cache.{name}", f"cache.{name}", wanted, f"cache.{name} {reason}")


def _num_draft_states(inputs: PlanInputs, size: int, left: int, ledger: Ledger) -> int:
    path, spec = "speculation.num_draft_states", inputs.spec.speculative
    if spec is None:
        return 0
    if spec.num_draft_states != AUTO:
        return ledger.take(path, "speculative.num_draft_states", int(spec.num_draft_states))
    fit = max(0, left) // MOST_OF_MEMORY // size
    if not fit:
        message = f"a draft needs a place of {format_size(size)} for the states before it, and there is no room for one"
        ledger.refuse("speculative", "plan/speculation", message, hint="remove speculative")
    if fit < DRAFT_STATES:
        return ledger.decide(path, fit, "computed", "an eighth of what weights, activations and snapshots leave")
    return ledger.decide(path, DRAFT_STATES, "default", "states before each draft of a step, and those that are read")


def _num_snapshots(inputs: PlanInputs, size: int, max_num_seqs: int, left: int, ledger: Ledger) -> int:
    path, wanted = "cache.state_snapshots", inputs.spec.cache.state_snapshots
    if wanted != AUTO:
        return ledger.take(path, path, int(wanted))
    if not inputs.spec.cache.prefix_caching:
        return ledger.decide(path, 0, "computed", "no prefixes are kept")
    useful = SNAPSHOTS_PER_SEQUENCE * max_num_seqs
    fit = max(0, left - num_slots(max_num_seqs, 0) * size) // MOST_OF_MEMORY // size
    if fit < useful:
        return ledger.decide(path, fit, "computed", "an eighth of what weights and activations leave")
    return ledger.decide(path, useful, "computed", f"{SNAPSHOTS_PER_SEQUENCE} for each sequence that runs")


def _refuse_draft_states(inputs: PlanInputs, ledger: Ledger) -> None:
    spec = inputs.spec.speculative
    if spec is not None and spec.num_draft_states != AUTO:
        message = "this model keeps no recurrent states, so none come before drafts"
        path = "speculative.num_draft_states"
        ledger.refuse(path, "plan/speculation", message, allowed="auto", hint="write auto")


def _refuse_snapshots(inputs: PlanInputs, ledger: Ledger) -> None:
    if inputs.spec.cache.state_snapshots not in (AUTO, 0):
        message = "this model keeps no recurrent states, so there is nothing to keep snapshots of"
        ledger.refuse("cache.state_snapshots", "plan/state-snapshots", message, allowed="auto or 0", hint="write auto")
