"""Part of pass `compatibility`: whether weights and caches can be kept from being paged out."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger

PATH, RULE = "hardware.memory.lock", "plan/lock"


def plan_lock(inputs: PlanInputs, kernels: KernelSetFacts, ledger: Ledger) -> bool:
    """Refuses it where the memory is not that of a CPU set: nobody pages a GPU's, and torch keeps its own."""
    if not inputs.spec.hardware.memory.lock:
        return False
    if kernels.name.startswith("cpu-"):
        reason = "weights and caches are resident from the start, and stay so"
        return ledger.take("kernels.lock_memory", PATH, True, reason)
    why = "memory of a GPU is never paged out" if kernels.device != "cpu" else "only the sets cpu-... lock memory"
    message = f"kernel set {kernels.name} locks nothing: {why}"
    ledger.refuse(PATH, RULE, message, allowed="false", hint=f"remove {PATH}")
    return False
