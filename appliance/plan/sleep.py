"""Part of pass `compatibility`: whether the engine can give its memory back on demand."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger

PATH, RULE = "model.enable_sleep_mode", "plan/sleep"


def check_sleep(inputs: PlanInputs, kernels: KernelSetFacts, num_ranks: int, ledger: Ledger) -> None:
    """Refuses sleep where no set gives memory back: those on a CPU map their weights, and ranks have memory each."""
    if not inputs.spec.model.enable_sleep_mode:
        return
    hint = f"remove {PATH}; `appliance down` frees the machine"
    if not kernels.uses_torch:
        message = f"kernel set {kernels.name} keeps its memory; only sets of GPUs give it back"
        ledger.refuse(PATH, RULE, message, allowed="false", hint=hint)
    elif num_ranks > 1:
        ledger.refuse(PATH, RULE, f"{num_ranks} ranks do not sleep in this version", allowed="false", hint=hint)
