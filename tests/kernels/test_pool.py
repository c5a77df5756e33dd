"""The native thread pool alone, in small programs: under load, under the thread sanitizer, and out of threads."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or "c++"
SECONDS = 4


def build(folder: Path, name: str, *options: str) -> Path:
    sources = [Path(__file__).with_name(f"{name}.cpp"), ROOT / "kernels/cpu/pool.cpp"]
    program = folder / name
    command = [COMPILER, "-std=c++20", "-O2", "-g", f"-I{ROOT}/kernels/include", f"-I{ROOT}/kernels/cpu", *options]
    subprocess.run([*command, *sources, "-o", program, "-pthread"], check=True)
    return program


def stress(program: Path, threads: int, busy: int) -> str:
    answer = subprocess.run(
        [program, str(threads), str(SECONDS), str(busy)],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plain"), "pool_stress")


@pytest.mark.parametrize("threads", [2, 4])
def test_runs_and_jobs_go_on_beside_busy_neighbours(plain: Path, threads: int) -> None:
    assert stress(plain, threads, busy=len(os.sched_getaffinity(0)) + 1).endswith("rounds\n")


def test_the_thread_sanitizer_finds_nothing(tmp_path: Path) -> None:
    program = build(tmp_path, "pool_stress", "-fsanitize=thread")
    assert stress(program, threads=3, busy=0).endswith("rounds\n")


def test_a_system_without_threads_refuses_the_pool(tmp_path: Path) -> None:
    program = build(tmp_path, "pool_limits")
    answer = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    refused, worked = answer.stdout.splitlines()
    assert re.fullmatch(r"thread \d+ of 1024 cannot be started: .+", refused)
    assert worked == "64 items"
