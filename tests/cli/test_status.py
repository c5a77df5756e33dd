"""`appliance status` of a server that does not answer yet, and of one whose engine has written its boot report."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from appliance.cli import status
from appliance.deploy.process import identify
from appliance.deploy.state import CurrentState, DeploymentState
from appliance.plan.boot import BootReport, WeightsOrigin
from appliance.service.status_file import STATUS_FILE

FROM_CACHE = WeightsOrigin(origin="cache", seconds=0.125, size_bytes=3 << 20, file="/there/m.packed")
PACKED = WeightsOrigin(origin="checkpoint", seconds=2.5, size_bytes=3 << 20, reason="nothing is kept")
METRICS = """\
# TYPE appliance_requests_finished counter
appliance_requests_finished_total{engine="0",finished_reason="stop"} 3.0
# TYPE appliance_prompt_tokens counter
appliance_prompt_tokens_total{engine="0"} 40.0
# TYPE appliance_generation_tokens counter
appliance_generation_tokens_total{engine="0"} 1500.0
"""


@pytest.fixture
def generation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a deployment whose process is this one, and on whose port no process listens."""
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path))
    state = DeploymentState(tmp_path, "quick")
    state.create()
    process = identify(os.getpid())
    assert process is not None
    current = CurrentState(
        name="quick",
        generation=1,
        process=process,
        started_at=0.0,
        url="http://127.0.0.1:9",
        served_name="m",
        needs_key=False,
        engine_sha256="e" * 64,
        serving_sha256="s" * 64,
        spec_file="q.yaml",
        appliance_version="0",
    )
    state.write_current(current)
    folder = state.generation(1).folder
    folder.mkdir(parents=True)
    return folder


def write_boot(folder: Path, weights: WeightsOrigin | None) -> None:
    report = BootReport(seconds={}, memory_bytes={}, num_blocks=1, weights=weights)
    event = {"time": 1.0, "event": "boot", **msgspec.to_builtins(report)}
    (folder / STATUS_FILE).write_bytes(msgspec.json.encode(event) + b"\n")


def shown(capsys: pytest.CaptureFixture[str], *, as_json: bool = False, with_usage: bool = False) -> str:
    assert status.run("quick", as_json, with_usage=with_usage) == 1  # it does not answer
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        (FROM_CACHE, "3.00 MiB from /there/m.packed in 0.12 s"),
        (PACKED, "3.00 MiB packed in 2.50 s (nothing is kept)"),
    ],
)
def test_it_says_where_the_weights_came_from(
    generation: Path, capsys: pytest.CaptureFixture[str], weights: WeightsOrigin, line: str
) -> None:
    write_boot(generation, weights)
    assert line in shown(capsys)
    [found] = json.loads(shown(capsys, as_json=True))
    assert found["weights"] == msgspec.to_builtins(weights)


@pytest.mark.usefixtures("generation")
def test_a_starting_engine_has_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "weights" not in shown(capsys)


def test_an_engine_without_weights_tells_none(generation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_boot(generation, None)
    assert "packed" not in shown(capsys)


@pytest.mark.usefixtures("generation")
def test_usage_is_told_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "ask_metrics", {"http://127.0.0.1:9": METRICS}.__getitem__)
    assert "of answers" not in shown(capsys)
    [found] = json.loads(shown(capsys, as_json=True))
    assert "usage" not in found
    lines = shown(capsys, with_usage=True).splitlines()
    assert lines[-2:] == [
        "  requests   stop 3",
        "  tokens     40 of prompts (0 cached), 1,500 of answers",
    ]
    [found] = json.loads(shown(capsys, as_json=True, with_usage=True))
    counted = {"requests": {"stop": 3}, "prompt_tokens": 40, "generation_tokens": 1500}
    assert found["usage"] == {**counted, "keys": {}, "adapters": {}}


@pytest.mark.usefixtures("generation")
def test_a_server_that_shows_no_metrics_tells_no_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage      the server shows no metrics" in shown(capsys, with_usage=True)
    [found] = json.loads(shown(capsys, as_json=True, with_usage=True))
    assert found["usage"] is None
