"""Names of kernel sets to kernel sets. Nothing is imported before it is asked for."""

import importlib
from typing import cast

from appliance.kernels.interface import KernelSet

CPU_LEVELS = ("generic", "avx2", "avx512", "avx512_bf16", "amx")
KERNEL_SET_NAMES = ("reference", *(f"cpu-{level}" for level in CPU_LEVELS))


class KernelSetError(RuntimeError):
    """A kernel set that is unknown, not built, or not for this processor."""


def load_kernel_set(name: str) -> KernelSet:
    """Raises KernelSetError with what to do about it."""
    if name == "reference":
        try:
            reference = importlib.import_module("appliance.kernels.reference.kernel_set")
        except ModuleNotFoundError as error:
            raise KernelSetError(
                f"kernel set 'reference' needs {error.name}; hint: pip install 'appliance[torch]'"
            ) from error
        return cast(KernelSet, reference.ReferenceKernelSet())
    if name not in KERNEL_SET_NAMES:
        raise KernelSetError(f"unknown kernel set {name!r}; known: {', '.join(KERNEL_SET_NAMES)}")
    native = importlib.import_module("appliance.kernels.cpu.kernel_set")
    return cast(KernelSet, native.CpuKernelSet(name.removeprefix("cpu-")))
