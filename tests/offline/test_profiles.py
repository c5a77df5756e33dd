"""Profiles from Python: vLLM's profiler_config names the folder of their traces."""

import argparse
import gzip
import json
from pathlib import Path

import pytest

from appliance import LLM, EngineArgs, SamplingParams
from appliance.importing.vllm_python import EngineArgumentError
from appliance.offline.errors import TraceError
from tests.offline.conftest import ARGUMENTS

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def test_a_trace_is_written_between_start_and_stop(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    config = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_with_stack": False}
    with LLM(str(model), profiler_config=config, **ARGUMENTS) as llm:
        llm.start_profile()
        llm.generate(["abc", "def"], PARAMS, use_tqdm=False)
        [profile] = llm.stop_profile()
        assert profile.trace is not None
        [file] = folder.iterdir()
        document = json.loads(gzip.decompress(file.read_bytes()))
        names = {event["name"] for event in document["traceEvents"]}
        assert any(name.startswith("prefill") or "prefill" in name for name in names)
        assert llm.stop_profile() == []
        assert list(folder.iterdir()) == [file]


def test_a_folder_that_cannot_be_had_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = {"profiler": "torch", "torch_profiler_dir": str(tmp_path / "file" / "traces")}
    with LLM(str(model), profiler_config=config, **ARGUMENTS) as llm:
        llm.start_profile()
        with pytest.raises(TraceError, match=r"cannot be written to .*file/traces: Not a directory"):
            llm.stop_profile()
        assert llm.generate("abc", PARAMS, use_tqdm=False)


def test_without_a_folder_sums_are_returned_alone(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    llm.start_profile()
    llm.generate("abc", PARAMS, use_tqdm=False)
    [profile] = llm.stop_profile()
    assert profile.trace is None
    assert list(tmp_path.iterdir()) == []


def test_a_command_line_has_it_as_json(model: Path) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    text = '{"profiler": "torch", "torch_profiler_dir": "/srv/traces"}'
    args = EngineArgs.from_cli_args(parser.parse_args(["--model", str(model), "--profiler-config", text]))
    assert args.prepare().plan.serving.routes.profiler_dir == "/srv/traces"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"profiler": "cuda"}, "a profiler of the device is started from outside"),
        ({"profiler": "torch", "torch_profiler_dir": 7}, "has to be the path of a folder"),
        ({"profiler": "torch"}, "torch_profiler_dir has to name the folder"),
        ({"profiler": "nsys"}, "traces are the engine's own"),
        ({"torch_profiler_dir": "x"}, "with profiler: torch only"),
        ({"profiler": "torch", "torch_profiler_dir": "x", "delay_iterations": 5}, "from start_profile to stop_profile"),
        ({"profiler": "torch", "torch_profiler_dir": "x", "torch_profiler_with_flops": True}, "tokens and seconds"),
        ({"profiler": "torch", "torch_profiler_dir": "x", "torch_profiler_depth": 2}, "has no such member"),
    ],
)
def test_what_a_trace_cannot_be_is_refused_by_name(config: dict[str, object], said: str, model: Path) -> None:
    with pytest.raises(EngineArgumentError, match=said) as caught:
        LLM(str(model), profiler_config=config)
    assert caught.value.hint is None, "its own name helps nobody"
