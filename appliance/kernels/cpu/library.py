"""Loads the native library of a processor level, and turns its status codes into exceptions."""

import ctypes
import functools
import os
import pathlib

from appliance.base.native import build_hint, built_levels, library_path, rebuild_hint
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.kernels.cpu import abi
from appliance.kernels.errors import BindError, ExecutableError, KernelSetError, StepError
from appliance.kernels.ranks import RankError

CPU_INFO = pathlib.Path("/proc/cpuinfo")


class Library:
    """One level's functions, as attributes of `functions`."""

    def __init__(self, path: pathlib.Path) -> None:
        """Loads the library. Raises KernelSetError if the file is missing, unloadable, or of another ABI version."""
        hint = build_hint(path.stem.removeprefix("libappliance_cpu_"), built_levels())
        if not path.exists():
            raise KernelSetError(f"native library {path.name} is not installed", hint=hint)
        try:
            self.functions = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            abi.declare(self.functions)
        except (OSError, AttributeError) as error:
            raise KernelSetError(f"native library {path.name} cannot be loaded: {error}", hint=hint) from error
        version = self.functions.appl_abi_version()
        if version != abi.ABI_VERSION:
            message = f"native library {path.name} has ABI version {version}, this package needs {abi.ABI_VERSION}"
            raise KernelSetError(message, hint=rebuild_hint(built_levels()))

    def disable_cascade(self, program: ctypes.c_void_p) -> None:
        """Lets decodes of a program read by themselves what they share. Raises BindError for a library that was built
        before there was this switch."""
        function = getattr(self.functions, "appl_program_disable_cascade", None)
        if function is None:
            message = "the native library cannot switch cascade attention off"
            raise BindError(message, hint=rebuild_hint(built_levels()))
        function.restype, function.argtypes = None, (ctypes.c_void_p,)
        function(program)

    def last_error(self) -> str:
        return bytes(self.functions.appl_last_error()).decode()

    def step_error(self, status: int) -> StepError | ExecutableError:
        """Returns the error of a step that did not run: StepError for its inputs, RankError for another rank, else
        ExecutableError."""
        if status == abi.INVALID_ARGUMENT:
            return StepError(self.last_error())
        return (RankError if status == abi.RANK_FAILED else ExecutableError)(self.last_error())

    def check(self, status: int, context: str) -> None:
        """Raises BindError with the library's message unless `status` is 0."""
        if status != 0:
            raise BindError(f"{context}: {self.last_error()}")


def cpu_flags() -> frozenset[str]:
    """Returns the flags of the first processor, as the Linux kernel spells them; empty if they are unknown."""
    for line in CPU_INFO.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


@functools.cache
def load_level(level: str) -> Library:
    """Loads a level. Raises KernelSetError if the processor lacks a flag of the level, or the library is not built."""
    missing = sorted(set(KERNEL_SETS[f"cpu-{level}"].required_flags) - cpu_flags())
    if missing:
        message = f"kernel set cpu-{level} needs processor flags that are not here: {', '.join(missing)}"
        raise KernelSetError(message, hint="choose another kernel set, or let the plan choose")
    return Library(library_path(level))
