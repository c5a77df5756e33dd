"""Loads kernel sets by name. A set is imported only when it is loaded."""

import importlib
from typing import cast

from appliance.catalog.kernel_sets import KERNEL_SETS, MODELLING
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet
from appliance.kernels.model_source import ModelKernelSet

CPU_LEVELS = tuple(entry.level for entry in KERNEL_SETS.values() if entry.level is not None)


def built_kernel_sets() -> tuple[str, ...]:
    """The names of the sets that this version has for step programs."""
    return tuple(entry.name for entry in KERNEL_SETS.values() if entry.is_built and entry.runs == "programs")


def load_kernel_set(name: str) -> KernelSet:
    """Loads a kernel set. Raises KernelSetError if it is unknown, not built, or not for this processor."""
    if name not in built_kernel_sets():
        raise KernelSetError(f"unknown kernel set {name!r}", hint=f"known are {', '.join(built_kernel_sets())}")
    return cast(KernelSet, _load(name))


def load_model_set() -> ModelKernelSet:
    """Loads the set that runs modelling code. Raises KernelSetError if a package that it needs is not installed."""
    return cast(ModelKernelSet, _load(MODELLING))


def _load(name: str) -> object:
    module = KERNEL_SETS[name].module
    assert module is not None, "only sets that are built are loaded"
    try:
        return importlib.import_module(module).load(name)
    except ModuleNotFoundError as error:
        message = f"kernel set {name!r} needs the package {error.name}"
        raise KernelSetError(message, hint="pip install 'appliance[torch]'") from error
