"""Part of pass `compatibility`: whether the engine can take other weights while it runs."""

from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan

PATH, RULE = "model.weight_update_paths", "plan/weight_updates"


def check_weight_updates(inputs: PlanInputs, parallel: ParallelPlan, ledger: Ledger, *, is_modelled: bool) -> None:
    """Refuses updates where the parts of a model could end up with weights of two versions, or keep them elsewhere."""
    if not inputs.spec.model.weight_update_paths:
        return
    hint = f"remove {PATH}; a restart takes the new checkpoint"
    if parallel.placing.is_balanced:
        message = "experts that move (parallelism.enable_eplb) are read from the planned checkpoint"
        ledger.refuse(PATH, RULE, message, hint=hint)
    elif parallel.spreads_experts:
        ledger.refuse(PATH, RULE, "replicas with experts among them do not change their weights together", hint=hint)
    elif is_modelled:
        ledger.refuse(PATH, RULE, "modelling code of the checkpoint keeps its own weights", hint=hint)
