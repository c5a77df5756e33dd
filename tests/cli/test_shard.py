"""`appliance shard`, through the command line."""

import json
from pathlib import Path

import pytest

from appliance.base.errors import ExitCode
from appliance.cli.app import main
from tests.engine.test_rank_group import machine_with
from tests.loading.by_rank import random_spec

TENSOR = ("--set", "parallelism.tensor=2")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command line that lacks its folder."""
    return ["shard", str(random_spec(tmp_path)), *TENSOR, "--hardware", machine_with(2, tmp_path), "--output"]


def test_it_says_what_it_wrote(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    assert main([*words, str(state)]) == ExitCode.OK
    told = capsys.readouterr()
    assert f"path   {state}" in told.out
    assert "ranks  2 (tensor: 2, pipeline: 1), " in told.out
    assert [line[:9] for line in told.err.splitlines() if line.startswith("rank")] == ["rank 0 of", "rank 1 of"]
    names = {path.name for path in state.iterdir()}
    assert {"config.json", "tokenizer.json", "sharded_state.json", "model-rank-1-part-0.safetensors"} <= names
    assert "model.safetensors" not in names


def test_as_json(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, str(tmp_path / "state"), "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["tensor"], told["pipeline"]) == (str(tmp_path / "state"), 2, 1)
    sizes = [(tmp_path / "state" / f"model-rank-{rank}-part-0.safetensors").stat().st_size for rank in range(2)]
    assert told["size_bytes"] == sizes


def test_a_refusal_is_words_and_a_code(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, str(tmp_path / "model")]) == ExitCode.INVALID
    assert "is not empty\n  hint: name a new folder" in capsys.readouterr().err
