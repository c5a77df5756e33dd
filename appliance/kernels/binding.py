"""Loads kernel sets by name. A set is imported only when it is loaded."""

import importlib
from typing import cast

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet

CPU_LEVELS = tuple(entry.level for entry in KERNEL_SETS.values() if entry.level is not None)


def built_kernel_sets() -> tuple[str, ...]:
    """The names of the sets that this version has."""
    return tuple(entry.name for entry in KERNEL_SETS.values() if entry.is_built)


def load_kernel_set(name: str) -> KernelSet:
    """Loads a kernel set. Raises KernelSetError if it is unknown, not built, or not for this processor."""
    entry = KERNEL_SETS.get(name)
    if entry is None or entry.module is None:
        raise KernelSetError(f"unknown kernel set {name!r}", hint=f"known are {', '.join(built_kernel_sets())}")
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        message = f"kernel set {name!r} needs the package {error.name}"
        raise KernelSetError(message, hint="pip install 'appliance[torch]'") from error
    return cast(KernelSet, module.load(name))
