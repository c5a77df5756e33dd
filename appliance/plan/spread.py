"""One engine of one rank beside several ranks, and beside several engines, on one machine's CPU: which one is faster.

As many threads run in each case. Ranks divide the program and wait for each other; replicas each read all weights, and
share the memory's bandwidth among those that are busy.
"""

from typing import NamedTuple

import msgspec

from appliance.hardware.facts import MeasuredFacts
from appliance.plan.advice import Figures, Planner, figures, full_batch
from appliance.plan.estimate import Workload, estimate
from appliance.plan.fit import Change, changed_inputs
from appliance.plan.inputs import PlanInputs
from appliance.plan.programs import program_of
from appliance.plan.types import EnginePlan

_COUNTS = (2, 4)


class CoreUse(msgspec.Struct, frozen=True):
    """A way to use the cores; ratios are those of its figures to those of the plan, above 1 is better."""

    path: str
    count: int
    prefill: float
    decode: float  # of one stream alone
    throughput: float  # of as many streams as the plan has places


def spreads(inputs: PlanInputs, plan: EnginePlan, measured: MeasuredFacts, planner: Planner) -> list[CoreUse]:
    """Returns the ways that this machine and model allow; none where the plan is not of one rank and one engine on a
    CPU."""
    parallel = plan.parallel
    before = figures(plan, inputs, measured)
    if before is None or plan.device != "cpu" or (parallel.num_ranks, parallel.data) != (1, 1):
        return []
    ways = [(path, count) for path in ("parallelism.tensor", "parallelism.data") for count in _COUNTS]
    one = _One(inputs, before, full_batch(plan).streams, measured, planner)
    found = (_spread(one, path, count) for path, count in ways)
    return [spread for spread in found if spread is not None]


class _One(NamedTuple):
    """What is compared with: one rank of one engine, with so many streams when all its places are taken."""

    inputs: PlanInputs
    before: Figures
    streams: int
    measured: MeasuredFacts
    planner: Planner


def _spread(one: _One, path: str, count: int) -> CoreUse | None:
    inputs, before, streams, measured, planner = one
    changed = changed_inputs(inputs, Change(path, count, ""))
    plan, ledger = planner(changed)
    if ledger.refusals or ledger.misfits:
        return None
    by_itself = msgspec.structs.replace(plan, parallel=msgspec.structs.replace(plan.parallel, replicas=1))
    alone = figures(by_itself, changed, measured)  # one stream: the other engines have nothing to do
    if alone is None:
        return None
    engines, program = plan.parallel.replicas, program_of(plan, changed.model, changed.programs)
    busy = estimate(plan, program, measured, Workload(streams=max(1, streams // engines)))
    assert busy is not None, "there are figures of one alone"
    return CoreUse(
        path=path,
        count=count,
        prefill=alone.prefill_tokens_per_s / before.prefill_tokens_per_s,
        decode=alone.decode_tokens_per_s / before.decode_tokens_per_s,
        throughput=engines * busy.output_tokens_per_s / before.output_tokens_per_s,
    )
