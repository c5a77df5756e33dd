"""Part of pass `compatibility`: whether the engine can give its memory back on demand."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan

PATH, RULE = "model.enable_sleep_mode", "plan/sleep"


def check_sleep(inputs: PlanInputs, kernels: KernelSetFacts, parallel: ParallelPlan, ledger: Ledger) -> None:
    """Refuses sleep where the kernel set cannot give its memory back, or others need what a replica has."""
    if not inputs.spec.model.enable_sleep_mode:
        return
    if parallel.spreads_experts:
        message = "replicas with experts among them do not sleep in this version: each needs those of the others"
        ledger.refuse(PATH, RULE, message, allowed="false", hint=f"remove {PATH}, or parallelism.expert")
        return
    if kernels.sleeps:
        return
    hint = f"remove {PATH}; `appliance down` frees the machine"
    ledger.refuse(PATH, RULE, f"kernel set {kernels.name} keeps its memory", allowed="false", hint=hint)
