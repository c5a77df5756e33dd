"""The native library with which a machine is measured."""

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.hardware.facts import HardwareFacts
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.errors import KernelSetError


def usable_level(facts: HardwareFacts) -> str:
    """Returns the highest level that is installed and runs on a machine's CPU. Raises KernelSetError if none does."""
    for entry in reversed(KERNEL_SETS.values()):
        if entry.level is None or not set(entry.required_flags) <= set(facts.cpu.flags):
            continue
        try:
            load_kernel_set(entry.name)
        except KernelSetError:
            continue  # another level may be installed
        return entry.level
    raise KernelSetError("no native library that is installed runs on this CPU", hint="appliance doctor shows them")
