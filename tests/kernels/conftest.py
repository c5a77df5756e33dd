"""The kernel sets of this machine: each level is compared with the reference."""

import pathlib

import pytest

from appliance.kernels.binding import load_kernel_set
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet

EMULATED = pathlib.Path(__file__).parents[2] / "build/emulated"
EMULATED_HINT = (
    "build it with: cmake -S kernels -B build/emulated -DAPPLIANCE_LEVELS=emulated,emulated_amx && "
    "cmake --build build/emulated"
)
LEVELS = ("generic", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "emulated", "emulated_amx")


@pytest.fixture(scope="session")
def reference() -> KernelSet:
    return load_kernel_set("reference")


@pytest.fixture(scope="session", params=LEVELS)
def library(request: pytest.FixtureRequest) -> Library:
    """Skips a level that this processor cannot run. In plain C++, `emulated` is AVX-512 with VNNI and BF16, and
    `emulated_amx` the matrix unit beside the vectors of AVX2."""
    if request.param.startswith("emulated"):
        path = EMULATED / f"libappliance_cpu_{request.param}.so"
        if not path.exists():
            pytest.skip(EMULATED_HINT)
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
