"""Part of pass `memory`: the block size, from the kernels that read the blocks."""

from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger


def plan_block_size(inputs: PlanInputs, kernels: KernelSetFacts, ledger: Ledger) -> int:
    wanted, path = inputs.spec.cache.block_size, "cache.block_size"
    preferred = inputs.profile.defaults.block_size
    if wanted == AUTO:
        size = preferred if preferred in kernels.block_sizes else kernels.default_block_size
        return ledger.decide(path, size, "profile", f"default of profile {inputs.profile.name}")
    if wanted in kernels.block_sizes:
        return ledger.take(path, path, int(wanted))
    message = f"{kernels.name} has no blocks of {wanted} tokens"
    if not ledger.may_degrade("block_size", f"{message}; blocks of {kernels.default_block_size} are planned"):
        allowed = ", ".join(map(str, kernels.block_sizes))
        ledger.refuse(path, "plan/block-size", message, allowed=f"auto, {allowed}", hint="write auto")
    return kernels.default_block_size
