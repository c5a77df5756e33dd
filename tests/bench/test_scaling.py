"""What is measured on so many cores, and the share of the ideal."""

from pathlib import Path

import pytest

from appliance.bench.scaling import Reached, Setting, render_scaling, settings
from appliance.cli import bench
from appliance.cli.arguments.bench import BenchArguments
from appliance.hardware.probe.machine import probe_machine
from tests.models.tiny import make_tiny

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 128, skip_tokenizer_init: true}}
hardware: {{memory: {{kv_cache: 1MiB}}, num_threads: 1}}
"""


def test_ranks_have_as_many_threads_each() -> None:
    assert list(settings(16)) == [Setting(1, 4), Setting(2, 4), Setting(4, 4), Setting(1, 16)]
    assert list(settings(16, 8)) == [Setting(1, 8), Setting(2, 8), Setting(1, 16)]
    assert list(settings(2)) == [Setting(1, 1), Setting(2, 1), Setting(1, 2)]
    assert list(settings(1)) == [Setting(1, 1)]


def test_the_ideal_is_as_many_times_one() -> None:
    found = [Reached(Setting(1, 2), 50.0), Reached(Setting(2, 2), 90.0), Reached(Setting(1, 4), 80.0)]
    rows = [line.split() for line in render_scaling(found).splitlines()[1:]]
    assert rows == [
        ["1", "2", "50.0", "1.00", "100%"],
        ["2", "2", "90.0", "1.80", "90%"],
        ["1", "4", "80.0", "1.60", "80%"],
    ]


def test_the_verb_measures_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tiny("llama", tmp_path / "model")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(source=tmp_path / "model"))
    changes = ("num_prompts=4", "input_len=8", "output_len=4", "repeats=1", "ignore_eos=true")
    arguments = BenchArguments(spec=str(spec), changes=changes, vocab_size=64, output=tmp_path / "result.json")
    assert bench.run_scaling(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:1] == ["ranks"])
    cores = probe_machine().cpu.num_cores
    asked = [[str(number) for number in each] for each in settings(cores, 1)]
    assert len(asked) > 1 or cores == 1
    assert [line.split()[:2] for line in lines[at + 1 : at + 1 + len(asked)]] == asked
    assert lines[at + 1].endswith("100%")
