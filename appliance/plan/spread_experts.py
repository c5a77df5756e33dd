"""Pass `parallel`: experts that replicas have among them, which then run their steps together."""

from collections.abc import Iterator

from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.program.head_cuts import UncutError

_RULE = "plan/parallelism"


def spread_program(program: PlannedProgram, parallel: ParallelPlan, ledger: Ledger) -> PlannedProgram:
    """Returns what the first replica has of a program, if replicas have its experts among them. Refuses what cannot run
    in steps of all."""
    if not parallel.spreads_experts or not program.mixtures:
        return program
    refusals = list(_refusals(program, parallel))
    for path, message, hint in refusals:
        ledger.refuse(f"parallelism.{path}", _RULE, message, hint=hint)
    if refusals:
        return program
    try:
        spread = program.spread(parallel.data, parallel.placing)
    except UncutError as error:
        message = f"{parallel.data} replicas cannot have the experts among them: {error}"
        ledger.refuse("parallelism.expert", _RULE, message, hint="write a smaller data, or expert: false")
        return program
    own, whole = sum(spread.sizes.values()), sum(program.sizes.values())
    reason = f"all but experts in each of {parallel.data} replicas; {own / whole:.0%} of the weights"
    ledger.decide("parallel.share", round(own / whole, 3), "computed", reason)
    reason = "replicas run their steps together: where one fails or ends, all start again, and no change is rolling"
    ledger.decide("parallel.steps_of_all", parallel.data, "computed", reason)
    return spread


def _refusals(program: PlannedProgram, parallel: ParallelPlan) -> Iterator[tuple[str, str, str]]:
    """Yields field, message and hint."""
    kernels, one = program.kernels, "experts among replicas are for engines of one rank in this version"
    if not kernels.spreads_experts:
        message = f"experts are among replicas of the CPU sets, and not of {kernels.name}, in this version"
        yield "expert", message, "write expert: false, or data: 1"
    if parallel.tensor > 1:
        yield "tensor", f"{one}, and {parallel.tensor} tensor ranks are asked for", "write tensor: 1, or expert: false"
    if parallel.pipeline > 1:
        yield "pipeline", f"{one}, and {parallel.pipeline} stages are asked for", "write pipeline: 1, or expert: false"
    if parallel.replicas != parallel.data:
        message = f"replicas with experts among them share the memory of one machine, which has {parallel.replicas}"
        yield "data", f"{message} of {parallel.data}", "leave out where replicas are, or write expert: false"
    if parallel.enable_eplb:
        message = "experts do not move between replicas in this version"
        yield "enable_eplb", message, "write enable_eplb: false"
