"""Loads kernel sets by name. A set is imported only when it is loaded."""

import importlib
from typing import cast

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet

CPU_LEVELS = tuple(entry.level for entry in KERNEL_SETS.values() if entry.level is not None)
KERNEL_SET_NAMES = ("reference", *(f"cpu-{level}" for level in CPU_LEVELS))


def load_kernel_set(name: str) -> KernelSet:
    """Loads a kernel set. Raises KernelSetError if it is unknown, not built, or not for this processor."""
    if name == "reference":
        try:
            reference = importlib.import_module("appliance.kernels.reference.kernel_set")
        except ModuleNotFoundError as error:
            message = f"kernel set 'reference' needs the package {error.name}"
            raise KernelSetError(message, hint="pip install 'appliance[torch]'") from error
        return cast(KernelSet, reference.ReferenceKernelSet())
    if name not in KERNEL_SET_NAMES:
        raise KernelSetError(f"unknown kernel set {name!r}", hint=f"known are {', '.join(KERNEL_SET_NAMES)}")
    native = importlib.import_module("appliance.kernels.cpu.kernel_set")
    return cast(KernelSet, native.CpuKernelSet(name.removeprefix("cpu-")))
