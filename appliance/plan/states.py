"""Part of pass `memory`: the slots of recurrent states, for running sequences and for kept prefixes."""

import msgspec

from appliance.base.units import format_size
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.types import MemoryItem
from appliance.program.operators import StepProgram
from appliance.program.state_slots import num_slots

SNAPSHOTS_PER_SEQUENCE = 2  # where it parts from prompts before it, and its end
MOST_OF_MEMORY = 8  # snapshots take at most an eighth of what is left


class PlannedStates(msgspec.Struct, frozen=True):
    """num_snapshots: None for a program without states, which has no item either."""

    num_snapshots: int | None = None
    items: tuple[MemoryItem, ...] = ()


def plan_states(
    inputs: PlanInputs, program: StepProgram, max_num_seqs: int, left: int, ledger: Ledger
) -> PlannedStates:
    """Decides how many snapshots are kept. left: the bytes that weights and activations leave."""
    if not program.states:
        _refuse_snapshots(inputs, ledger)
        return PlannedStates()
    if inputs.spec.speculative is not None:
        message = "speculation over recurrent states is not in this version"
        ledger.refuse("speculative", "plan/not-built", message, hint="remove speculative")
    num_snapshots = _num_snapshots(inputs, program.state_bytes, max_num_seqs, left, ledger)
    slots = f"{max_num_seqs} sequences + 1 spare + {num_snapshots} snapshots"
    item = MemoryItem(
        name="states",
        size_bytes=num_slots(max_num_seqs, num_snapshots) * program.state_bytes,
        formula=f"({slots}) x {format_size(program.state_bytes)}",
    )
    return PlannedStates(num_snapshots, (item,))


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


def _refuse_snapshots(inputs: PlanInputs, ledger: Ledger) -> None:
    if inputs.spec.cache.state_snapshots not in (AUTO, 0):
        message = "this model keeps no recurrent states, so there is nothing to keep snapshots of"
        ledger.refuse("cache.state_snapshots", "plan/state-snapshots", message, allowed="auto or 0", hint="write auto")
