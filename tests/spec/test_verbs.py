"""validate, explain and init as a user sees them, and what they import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.cli import explain
from appliance.cli.app import main
from appliance.spec.tree import walk

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "fastapi", "numpy", "uvicorn", "huggingface_hub", "jinja2", "rich")


def test_validate_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "a.yaml")]) == 0
    assert main(["validate", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("ok\n")
    (tmp_path / "b.yml").write_text("kind: [")
    assert main(["validate", str(tmp_path / "a.yaml"), str(tmp_path / "b.yml")]) == 2
    assert "1 error in 1 of 2 files" in capsys.readouterr().out
    assert main(["validate", str(tmp_path / "none.yaml")]) == 2
    assert "cannot read the file: No such file" in capsys.readouterr().out


def test_validate_an_empty_folder(tmp_path: Path) -> None:
    assert main(["validate", str(tmp_path)]) == 2


def test_validate_with_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", str(tmp_path / "a.yaml")])
    assert main(["validate", str(tmp_path / "a.yaml"), "--set", "cache.block_size=24"]) == 2
    assert "--set cache.block_size" in capsys.readouterr().out


def test_init_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.yaml"
    assert main(["init", str(file), "--source", "./models/My Model.Q4_K.gguf", "--schema"]) == 0
    assert "name: my-model-q4-k" in file.read_text()
    assert file.read_text().startswith("# yaml-language-server: $schema=./deployment.v1.json")
    assert main(["init", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["init", str(file), "--force"]) == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "model"),
        ("cache.block_size", "auto, 1, 8, 16, 32, 64 or 128"),
        ("max_num_seqs", "scheduler.max_num_seqs"),
        ("--gpu-memory-utilization", "hardware.memory.utilization"),
        ("lora.adapters[0].source", "A folder that peft saved"),
        ("endpoints.http", "root_path"),
        ("endpoints/public", "A public address needs keys."),
        ("model.task", "This version runs auto, generate"),
    ],
)
def test_explain(path: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run(path) == 0
    assert words in capsys.readouterr().out


def test_explain_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    for found in walk():
        assert explain.run(found.path) == 0
        assert found.doc.doc in capsys.readouterr().out


def test_explain_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run("cache.blok_size") == 2
    assert "did you mean cache.block_size?" in capsys.readouterr().err


def test_validate_imports_nothing_heavy() -> None:
    code = (
        "import sys; from appliance.cli.app import main; "
        "status = main(['validate', 'docs/examples']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); sys.exit(status)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("path", ["", "cache.block_size", "endpoints/public", "max_num_seqs"])
def test_explain_for_programs(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run(path, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert all({"path", "doc", "takes"} <= set(each) or set(each) == {"rule", "summary"} for each in found)
