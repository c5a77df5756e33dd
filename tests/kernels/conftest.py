"""The kernel sets of this machine: each level is compared with the reference."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from appliance.kernels.binding import load_kernel_set
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.errors import KernelSetError
from appliance.kernels.interface import KernelSet
from tests.native import emulated_path, levels

EMULATED_HINT = (
    "build it with: cmake -S kernels -B build/emulated -DAPPLIANCE_LEVELS=emulated,emulated_amx && "
    "cmake --build build/emulated"
)


@pytest.fixture(scope="session")
def reference() -> KernelSet:
    return load_kernel_set("reference")


@pytest.fixture(scope="session", params=levels())
def library(request: pytest.FixtureRequest) -> Library:
    """Skips a level that this processor cannot run."""
    if request.param.startswith("emulated"):
        path = emulated_path(request.param)
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


Case = TypeVar("Case")

_MOST_CASES = os.environ.get("APPLIANCE_TEST_CASES")
_LONG = ("test_attention.py", "test_attention_words.py", "test_cascade.py", "test_linear.py", "test_linear_inputs.py",
         "test_screen.py")  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With APPLIANCE_TEST_CASES, so many cases of each test of the long files run, spread evenly over all cases.

    The thread sanitizer needs hours for all of them, while the threads of all cases of a test meet in the same places.
    """
    if _MOST_CASES is None:
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid):
        if item.path.parent == Path(__file__).parent and item.path.name in _LONG:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for cases in tests.values() for item in left_out_of(cases, int(_MOST_CASES))}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))


def left_out_of(cases: Sequence[Case], most: int) -> list[Case]:
    """Returns all but `most` of the cases, of which the first and those in even steps after it stay."""
    kept = {len(cases) * number // most for number in range(most)}
    return [case for number, case in enumerate(cases) if number not in kept]
