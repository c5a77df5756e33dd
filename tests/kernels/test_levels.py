"""The levels that a build makes: CMake and the planner choose the same level for a processor."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.hardware import facts_names, load_facts, load_profiles
from appliance.hardware.select import select_profile
from appliance.kernels.binding import CPU_LEVELS

SCRIPT = Path(__file__).parents[2] / "kernels" / "levels.cmake"
CPU_PROFILES = [profile for profile in load_profiles() if profile.device == "cpu"]
MACHINES = [name for name in facts_names() if load_facts(name).cpu.architecture == "x86_64"]


def cmake(*definitions: str) -> subprocess.CompletedProcess[str]:
    command = ["cmake", *(f"-D{each}" for each in definitions), "-P", str(SCRIPT)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def levels_of(choice: str) -> list[str]:
    done = cmake(f"APPLIANCE_LEVELS={choice}")
    assert done.returncode == 0, done.stderr
    return done.stderr.strip().split(",")


def best_level(folder: Path, vendor: str, flags: Sequence[str]) -> str:
    info = folder / "cpuinfo"
    processor = f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {' '.join(flags)}\nvmx flags\t: ept\n\n"
    info.write_text(processor * 2)
    done = cmake("APPLIANCE_LEVELS=auto", f"APPLIANCE_CPU_INFO={info}")
    assert done.returncode == 0, done.stderr
    return done.stderr.strip()


@pytest.mark.parametrize("name", MACHINES)
def test_the_level_that_plans_choose_is_built(name: str, tmp_path: Path) -> None:
    facts = load_facts(name)
    preferred = select_profile(facts, CPU_PROFILES).profile.kernel_sets
    chosen = next(each for each in preferred if set(KERNEL_SETS[each].required_flags) <= set(facts.cpu.flags))
    assert best_level(tmp_path, facts.cpu.vendor, facts.cpu.flags) == chosen.removeprefix("cpu-")


@pytest.mark.parametrize("level", CPU_LEVELS)
def test_a_level_needs_the_flags_of_the_catalogue(level: str, tmp_path: Path) -> None:
    flags = KERNEL_SETS[f"cpu-{level}"].required_flags
    assert best_level(tmp_path, "AuthenticAMD", ("sse2", *flags)) == level
    for left_out in flags:
        rest = [flag for flag in flags if flag != left_out]
        assert best_level(tmp_path, "AuthenticAMD", rest) != level


def test_the_levels_that_a_processor_runs_and_others(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    flags = KERNEL_SETS["cpu-avx512"].required_flags
    info.write_text(f"vendor_id : GenuineIntel\nflags : sse2 {' '.join(flags)}\n")
    done = cmake("APPLIANCE_LEVELS=here,amx,avx2", f"APPLIANCE_CPU_INFO={info}")
    assert done.stderr.strip().split(",") == ["avx512", "avx2", "generic", "amx"]


def test_levels_are_named_or_all() -> None:
    assert sorted(levels_of("all")) == sorted(CPU_LEVELS)
    assert levels_of("avx2,generic,avx2") == ["avx2", "generic"]
    assert levels_of("emulated") == ["emulated"]
    assert levels_of("") == levels_of("auto")


@pytest.mark.parametrize("choice", ["avx3", "avx2,avx3", ","])
def test_what_is_no_level_is_refused(choice: str) -> None:
    done = cmake(f"APPLIANCE_LEVELS={choice}")
    message = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert f"APPLIANCE_LEVELS is '{choice}', but must be auto, here, all, or some of amx, avx512_bf16" in message


def test_a_processor_that_is_not_known_is_no_generic_one(tmp_path: Path) -> None:
    done = cmake("APPLIANCE_LEVELS=auto", f"APPLIANCE_CPU_INFO={tmp_path / 'nothing'}")
    assert done.returncode != 0
    assert "APPLIANCE_LEVELS=all" in done.stderr
