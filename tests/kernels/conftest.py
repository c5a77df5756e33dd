"""The kernel sets of this machine: each level is compared with the reference."""

import pytest

from appliance.kernels.binding import load_kernel_set
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.cpu.library import Library, cpu_flags, load_level
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet
from tests.native import emulated_path, levels

EMULATED_HINT = (
    "build it with: cmake -S kernels -B build/emulated -DAPPLIANCE_LEVELS=emulated,emulated_amx && "
    "cmake --build build/emulated"
)

EMULATED_REASON = "this processor has the instructions that emulated stands for"


def has_avx512() -> bool:
    """Returns whether `make test` has built no emulated AVX-512, as the real one is here."""
    return "avx512_bf16" in cpu_flags()


@pytest.fixture(scope="session")
def reference() -> KernelSet:
    return load_kernel_set("reference")


@pytest.fixture(scope="session", params=levels())
def library(request: pytest.FixtureRequest) -> Library:
    """Skips a level that this processor cannot run."""
    if request.param.startswith("emulated"):
        path = emulated_path(request.param)
        if not path.exists():
            pytest.skip(EMULATED_REASON if request.param == "emulated" and has_avx512() else EMULATED_HINT)
        return Library(path)
    try:
        return load_level(request.param)
    except KernelSetError as error:
        if "flags" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def native(library: Library) -> CpuKernelSet:
    return CpuKernelSet("under-test", library)
