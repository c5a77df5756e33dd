"""What kernels take of a GPU, compiled without one. All of it takes minutes: `make gpu-compile`."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from appliance.kernels.gpu.triton.ahead import launches_of
from appliance.kernels.gpu.triton.architectures import architecture
from appliance.kernels.kernel_cache import VARIABLE, open_kernel_folder
from tests.kernels.triton.cases import ARCHS, CASES
from tests.kernels.triton.compiled import TABLE, names

ROOT = Path(__file__).parents[3]
MOST_SPILLED = 64  # bytes: what a kernel keeps on its stack while it calls the slow path of an exact division


def test_every_kernel_is_recorded_within_bounds() -> None:
    table = json.loads(TABLE.read_text())
    assert set(table) == set(ARCHS)
    for arch in ARCHS:
        launched = {name: launches_of(partial(case, arch)) for name, case in CASES.items()}
        assert set(table[arch]) == {name for case, launches in launched.items() for name in names(case, launches)}
        over = {
            name: (spilled, shared)
            for name, (_, spilled, shared) in table[arch].items()
            if spilled > MOST_SPILLED or shared > architecture(arch).shared_bytes
        }
        assert over == {}


def test_every_kernel_has_a_case() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "appliance/kernels/gpu/triton").glob("*.py"))
    kernels = {line.partition("def ")[2].partition("(")[0] for line in sources.splitlines() if "_kernel(" in line}
    recorded = {name.split(": ")[1].split(" ")[0] for name in json.loads(TABLE.read_text())["sm90"]}
    assert len(recorded) > 10
    assert {name for name in kernels if name} == recorded


@pytest.mark.parametrize(("arch", "case"), [("sm90", "norms"), ("gfx942", "linear 16")])
def test_kernels_compile_without_a_device_and_are_kept(arch: str, case: str, tmp_path: Path) -> None:
    folder = open_kernel_folder(tmp_path, "profile")
    assert folder.num_kept == 0
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment[VARIABLE] = str(folder.path)
    command = [sys.executable, "-m", "tests.kernels.triton.compiled", "--arch", arch, case]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert open_kernel_folder(tmp_path, "profile").num_kept > 0
