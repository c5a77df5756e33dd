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


def shown(capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    assert status.run("quick", as_json) == 1  # it does not answer
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


def test_usage_is_told_where_it_is_asked_for(generation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage" not in shown(capsys)
    assert status.run("quick", with_usage=True) == 1
    assert generation.exists()
