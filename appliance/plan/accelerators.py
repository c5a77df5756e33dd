"""Why accelerators of a machine cannot be used, each in one sentence."""

from collections.abc import Iterable

from appliance.catalog.drivers import KERNEL_SET_OF, VENDORS, driver_obstacle
from appliance.catalog.gpu_operators import F8_GENERATIONS, GPU_ARCHITECTURES
from appliance.catalog.kernel_sets import KERNEL_SETS, torch_obstacle
from appliance.hardware.facts import AcceleratorFacts, HardwareFacts
from appliance.hardware.profile import Profile
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger


def obstacle(facts: HardwareFacts, kernel_set: str) -> str:
    """Says why this machine's packages and driver cannot run a set; empty if they can."""
    if lacks := torch_obstacle(KERNEL_SETS[kernel_set], facts.torch):
        return lacks
    cards = [each for each in facts.accelerators if KERNEL_SET_OF[each.vendor] == kernel_set]
    found = (driver_obstacle(each.vendor, facts.torch, each.driver) for each in cards)
    return next((why for why in found if why), "")


def can_run(profile: Profile, facts: HardwareFacts) -> bool:
    """Returns whether some kernel set of a profile is in this version, with packages and a driver that run it."""
    known = (name for name in profile.kernel_sets if name in KERNEL_SETS)
    return any(KERNEL_SETS[name].is_built and not obstacle(facts, name) for name in known)


def multiply_f8(accelerators: Iterable[AcceleratorFacts]) -> bool:
    """Returns whether all of them multiply FP8 with FP8, and so if there are none: torch's CPU device does."""
    return all(each.architecture in F8_GENERATIONS for each in accelerators)


def eight_bits(inputs: PlanInputs) -> tuple[str, str]:
    """Returns the quantization that rounds weights to 8 bits while loading, and what it costs: the one whose products
    take activations of 8 bits on the device that is planned for."""
    if inputs.profile.device != "cpu" and multiply_f8(inputs.facts.accelerators):
        return "fp8", "weights and activations are rounded to FP8"
    return "int8", "weights are rounded to 8 bits"


def no_device(kind: str) -> tuple[str, str]:
    """Returns what is wrong where a spec asks for a kind of device that a machine does not show, and a hint."""
    vendor, tool, options = VENDORS[kind]
    shown = "it has no driver, or this process may not use it"
    message = f"hardware.device is {kind}, and this machine shows no {vendor} GPU: {shown}"
    return message, f"{tool} has to list the card; a container needs {options}"


def warn_of_unused(inputs: PlanInputs, ledger: Ledger) -> None:
    """Warns of accelerators that `auto` passes over."""
    facts, spec = inputs.facts, inputs.spec.hardware
    if inputs.profile.device != "cpu" or spec.device != AUTO or spec.profile != AUTO:
        return
    for name, why in {each.name: _unused(each, facts) for each in facts.accelerators}.items():
        ledger.warnings.append(f"{name} is not used, and the CPU computes: {why}")


def _unused(accelerator: AcceleratorFacts, facts: HardwareFacts) -> str:
    if accelerator.architecture not in GPU_ARCHITECTURES:
        return f"there are no kernels for {accelerator.architecture}, only for {', '.join(GPU_ARCHITECTURES)}"
    return obstacle(facts, KERNEL_SET_OF[accelerator.vendor]) or "another profile has a higher priority"
