"""The scripts of docs/benchmarks keep up with the code that they measure."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

from appliance.engine.messages import SamplingParams
from appliance.kernels.cpu.kernel_set import CpuExecutable
from tests.engine.test_runner import configure
from tests.engine.tiny_program import VOCAB, tiny_executable

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in path.read_text())


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script imports its neighbours by name, as it does where it is run."""
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_each_file_is_a_script_or_is_imported_by_one() -> None:
    assert len(SCRIPTS) > 10
    others = {path.stem for path in BENCHMARKS.glob("*.py")} - {path.stem for path in SCRIPTS}
    assert others == {"contest"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_says_how_it_is_used(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {script.name}" in capsys.readouterr().out


def test_steps_without_a_model_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engine_step.py", "3", "--steps", "4", "--hash", "sha256"])
    importlib.import_module("engine_step").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["schedule", "prepare, sample, report", "commit", "encode"]


def test_screened_steps_are_compared_with_whole_ones() -> None:
    screen, config = importlib.import_module("screen"), configure()
    executable = tiny_executable(config, kernel_set="cpu-generic", screen_logits=True)
    assert isinstance(executable, CpuExecutable)
    greedy = SamplingParams(max_tokens=5, temperature=0.0)
    found = screen.measure(screen.Twice(executable), config, VOCAB, [[1, 2, 3], [4, 5, 6]], greedy)
    assert (found.rows, found.differing) == (8, 0)
    assert screen.line_of(found).endswith("| 0 of 8 |")


def test_builds_take_turns_at_a_step() -> None:
    steps, config = importlib.import_module("steps"), configure()
    both = [tiny_executable(config, kernel_set="cpu-generic") for _ in range(2)]
    for executable in both:
        executable.run(steps.prompt(8, config.block_size))
    times = list(steps.times_in_turn(both, steps.decodes(2, 8, config.block_size), seconds=0.01))
    assert times
    assert all(seconds > 0 for each in times for seconds in each)
