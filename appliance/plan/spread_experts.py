"""Pass `parallel`: experts that replicas have among them, which then run their steps together."""

from collections.abc import Iterator

from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.program.head_cuts import UncutError
from appliance.program.ranks import MAX_RANKS

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
        spread = program.spread(parallel.data, parallel.placing, parallel.tensor)
    except UncutError as error:
        of = "" if parallel.tensor == 1 else f" of {parallel.tensor} ranks"
        message = f"{parallel.data} replicas{of} cannot have the experts among them: {error}"
        ledger.refuse("parallelism.expert", _RULE, message, hint="write a smaller data, or expert: false")
        return program
    if parallel.tensor == 1:  # else it is decided with what a rank has
        own, whole = sum(spread.sizes.values()), sum(program.sizes.values())
        reason = f"all but experts in each of {parallel.data} replicas; {own / whole:.0%} of the weights"
        ledger.decide("parallel.share", round(own / whole, 3), "computed", reason)
    reason = "replicas run their steps together: where one fails or ends, all start again, and no change is rolling"
    ledger.decide("parallel.steps_of_all", parallel.data, "computed", reason)
    return spread


def _refusals(program: PlannedProgram, parallel: ParallelPlan) -> Iterator[tuple[str, str, str]]:
    """Yields field, message and hint."""
    kernels = program.kernels
    if not kernels.spreads_experts:
        message = f"experts are among replicas of the CPU sets, and not of {kernels.name}, in this version"
        yield "expert", message, "write expert: false, or data: 1"
    if parallel.pipeline > 1:
        message = "experts among replicas are for engines of one stage in this version, and"
        yield "pipeline", f"{message} {parallel.pipeline} are asked for", "write pipeline: 1, or expert: false"
    if parallel.data * parallel.tensor > MAX_RANKS:
        message = f"{MAX_RANKS} ranks of all replicas can have the experts among them, and there are"
        hint = "write smaller numbers of data and tensor, or expert: false"
        yield "data", f"{message} {parallel.data * parallel.tensor}", hint
    if parallel.replicas != parallel.data:
        message = f"replicas with experts among them share the memory of one machine, which has {parallel.replicas}"
        yield "data", f"{message} of {parallel.data}", "leave out where replicas are, or write expert: false"
    if parallel.enable_eplb:
        message = "experts do not move between replicas in this version"
        yield "enable_eplb", message, "write enable_eplb: false"
