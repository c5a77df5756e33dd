"""`appliance pull`, through the command line."""

import hashlib
import json
from pathlib import Path

import pytest

from appliance.cli.app import main

from .files import write_gguf
from .tensorizer_files import floats, write_tensors
from .test_folder import CONFIG

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model:
  source: ./missing.gguf
  mirrors: [./here.gguf]
  sha256: {digest}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "here.gguf")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_source(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(model)]) == 0
    told = capsys.readouterr()
    assert f"path          {model}" in told.out
    assert f"sha256        {sha256(model)}" in told.out
    assert "LlamaForCausalLM (gguf)" in told.out
    assert "checking here.gguf" in told.err


def test_a_spec(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "tiny.yaml"
    spec.write_text(SPEC.format(digest=sha256(model)))
    assert main(["pull", str(spec), "--json"]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert (document["path"], document["sha256"], document["num_tensors"]) == (str(model), sha256(model), 21)
    assert "missing.gguf: does not exist" in told.err


def test_a_spec_whose_checkpoint_is_a_file_of_tensorizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(tmp_path / "m.tensors", {"a": floats(2, 3)})
    spec = tmp_path / "tiny.yaml"
    head = "api_version: appliance/v1\nkind: Deployment\nname: tiny\n"
    spec.write_text(head + "model: {source: .}\nloading: {load_format: tensorizer}\n")
    assert main(["pull", str(spec), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["num_tensors"]) == ("tensorizer", 1)


def test_a_wrong_digest_is_an_error_in_words(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(model), "--sha256", "0" * 64]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"error: here.gguf: has sha256 {sha256(model)}, not 000" in told.err
    assert "Traceback" not in told.err
