"""The command that runs native tests on libraries which a sanitizer watches, with stand-ins for what it starts."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def sanitize(folder: Path, levels: str, **settings: str) -> str:
    """What the tests were started with."""
    program(folder / "tools/cmake", "true")
    program(folder / "tools/c++", "echo")  # a runtime of no name is preloaded
    program(folder / "venv/bin/pytest", 'echo "$APPLIANCE_TEST_NATIVE" "${APPLIANCE_TEST_CASES-all}" "$@"')
    build = folder / "build/sanitize/address"
    build.mkdir(parents=True, exist_ok=True)
    (build / "CMakeCache.txt").write_text(f"CMAKE_CXX_COMPILER:FILEPATH={folder}/tools/c++\n")
    environment = {"PATH": f"{folder}/tools:{os.environ['PATH']}", "VENV": f"{folder}/venv", "SANITIZE_LEVELS": levels}
    environment |= settings
    command = [ROOT / ".ci/sanitize", "address", "tests/some"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_library_of_other_levels_is_not_tested(tmp_path: Path) -> None:
    build = tmp_path / "build/sanitize/address"
    build.mkdir(parents=True)
    for level in ("avx2", "emulated", "emulated_amx", "generic"):
        (build / f"libappliance_cpu_{level}.so").touch()
    started = sanitize(tmp_path, "emulated_amx,generic")
    assert {path.name for path in build.glob("*.so")} == {
        "libappliance_cpu_emulated_amx.so", "libappliance_cpu_generic.so",
    }  # fmt: skip
    assert started.startswith("build/sanitize/address ")
    assert started.split()[-1] == "tests/some"


def test_all_cases_run_or_as_many_as_the_command_says(tmp_path: Path) -> None:
    cases = [sanitize(tmp_path, "avx2", SANITIZE_CASES=number).split()[1] for number in ("", "2")]
    assert cases == ["all", "2"]
