"""Pass `parallel`: whether experts can move between ranks as asked for."""

from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.program import PlannedProgram
from appliance.program.placement import IN_ORDER, ExpertPlacing, copy_counts
from appliance.program.routing import Experts

_RULE = "plan/parallelism"
_PATH = "parallelism.enable_eplb"


def planned_placing(program: PlannedProgram, parallel: ParallelPlan, ledger: Ledger) -> ExpertPlacing:
    """Returns where ranks have experts. Refuses to move them where that cannot be, and then returns what can. program:
    of one rank."""
    if not parallel.enable_eplb:
        return parallel.placing
    if not program.kernels.moves_experts:
        message = f"experts move between ranks of the CPU sets, and not of {program.kernels.name}, in this version"
        ledger.refuse(_PATH, _RULE, message, hint="write enable_eplb: false")
    if parallel.pipeline > 1:
        message = "experts move where one stage has all layers, and there are several"
        ledger.refuse(_PATH, _RULE, message, hint="write pipeline: 1, or enable_eplb: false")
    return parallel.placing if _has_room(program, parallel, ledger) else IN_ORDER


def _has_room(program: PlannedProgram, parallel: ParallelPlan, ledger: Ledger) -> bool:
    """Says whether all ranks have as many places, and no expert twice."""
    copies, ranks = parallel.num_redundant_experts, parallel.tensor
    for op in program.operators.get(Experts, ()):
        assert isinstance(op, Experts), "it is in the list of its kind"
        allowed = copy_counts(op.num_experts, ranks)
        if copies in allowed:
            continue
        message = f"{op.num_experts} experts and {copies} copies do not share out evenly among {ranks} ranks"
        some, hint = ", ".join(map(str, allowed[:8])), f"write num_redundant_experts: {allowed[0]}"
        ledger.refuse("parallelism.num_redundant_experts", _RULE, message, allowed=some, hint=hint)
        return False
    return True
