"""A deployment is named by its name or by its spec, wherever one is meant."""

from pathlib import Path

import pytest

from appliance.base.errors import ApplianceError
from appliance.cli.app import main
from appliance.deploy.naming import applied_from, find_deployment
from appliance.deploy.state import DeploymentState

from .applying import apply, wanted

SPEC = "api_version: appliance/v1\nkind: Deployment\nname: scripted\nmodel: {source: nowhere.gguf}\n"


def test_a_name_is_the_spec_that_was_applied(
    state: DeploymentState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_STATE", str(state.folder.parent))
    apply(state, wanted(tmp_path / "a"))
    with pytest.raises(ApplianceError, match=r"no longer at spec\.yaml"):
        applied_from("scripted")
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    assert applied_from("scripted") == ("spec.yaml", [])
    assert find_deployment("spec.yaml").name == find_deployment("scripted").name == "scripted"
    main(["plan", "scripted"])
    assert "nowhere.gguf" in capsys.readouterr().err  # the spec was read


def test_what_is_neither_is_read_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path))
    assert main(["plan", "nothing"]) == 2
    assert "cannot read the file" in capsys.readouterr().err


def test_what_was_applied_is_kept_with_each_generation(state: DeploymentState, tmp_path: Path) -> None:
    state.create()
    plan = wanted(tmp_path / "a").plan
    made = state.new_generation(plan, "name: a\n", {}, ["a=1"], "/specs/a.yaml")
    assert (made.spec_file, made.overrides) == ("/specs/a.yaml", ["a=1"])
    (made.folder / "applied.json").unlink()
    assert (made.spec_file, made.overrides) == ("", [])
    (made.folder / "overrides.json").write_text('["b=2"]')  # as an older version wrote it
    assert (made.spec_file, made.overrides) == ("", ["b=2"])
