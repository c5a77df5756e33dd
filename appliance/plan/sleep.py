"""Part of pass `compatibility`: whether the engine can give its memory back on demand."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger

PATH, RULE = "model.enable_sleep_mode", "plan/sleep"


def check_sleep(inputs: PlanInputs, kernels: KernelSetFacts, ledger: Ledger) -> None:
    """Refuses sleep where the kernel set cannot give its memory back."""
    if not inputs.spec.model.enable_sleep_mode or kernels.sleeps:
        return
    hint = f"remove {PATH}; `appliance down` frees the machine"
    ledger.refuse(PATH, RULE, f"kernel set {kernels.name} keeps its memory", allowed="false", hint=hint)
