"""The files that docs/ci offers: their forms are right, and the commands in them work."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.cli.app import main
from appliance.deploy.bundle.archive import read_archive
from tests.e2e.served import make_random_model

CI = Path(__file__).parents[2] / "docs" / "ci"
WORKFLOW, HOOKS = CI / "github-workflow.yml", CI / "pre-commit-config.yaml"
BASE = "api_version: appliance/v1\nkind: Deployment\nname: a\nmodel: {source: ../model}\n"


def commands() -> list[list[str]]:
    """Returns the `appliance` commands as words, without pipes and redirections."""
    steps: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["check"]["steps"]
    hooks: list[dict[str, Any]] = yaml.safe_load(HOOKS.read_text())["repos"][0]["hooks"]
    texts = [each.get("run", "") for each in steps] + [each["entry"] for each in hooks]
    return [shlex.split(text.split(">>")[0])[1:] for text in texts if text.startswith("appliance ")]


def test_there_are_commands() -> None:
    assert [words[0] for words in commands()] == ["validate", "render", "plan", "audit", "validate"]


def test_github_would_take_the_workflow() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with deployments/, whose model is elsewhere by the time of the check."""
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    deployments = tmp_path / "deployments"
    deployments.mkdir()
    (deployments / "base.yaml").write_text(BASE)
    (deployments / "prod.yaml").write_text("include: [base.yaml]\nname: prod\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:2]))
def test_the_commands_work(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = folder / "deployments" / "model-facts.json"
    facts.write_text(model_facts(folder))
    assert main(words) == 0, capsys.readouterr().err


def model_facts(folder: Path) -> str:
    """Returns the model.json of a bundle, as the workflow's comment says."""
    bundle = folder / "support.tar.gz"
    assert main(["doctor", "deployments/prod.yaml", "--bundle", str(bundle)]) == 0
    text = read_archive(bundle)["model.json"]
    assert json.loads(text)
    return text


def test_the_hook_runs_on_the_folder_as_a_whole() -> None:
    [hook] = yaml.safe_load(HOOKS.read_text())["repos"][0]["hooks"]
    assert hook["pass_filenames"] is False  # a part alone does not say what includes it
