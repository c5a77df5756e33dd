"""A spec with includes, from apply to drift: what is kept is the merged text, and a change of a base is seen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.app import main
from appliance.deploy.pins.lockfile import read_lock
from appliance.deploy.state import DeploymentState
from appliance.spec import load_text
from tests.e2e.conftest import free_port
from tests.e2e.served import make_random_model

BASE = "api_version: appliance/v1\nkind: Deployment\nname: base\nmodel: {source: ./model, max_model_len: 256}\n"
PROD = 'include: [base.yaml]\nname: composed\ndescription: "${env:WHO}"\nendpoints: {http: {port: %d}}\n'


@pytest.fixture
def prod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    (tmp_path / "base.yaml").write_text(BASE)
    spec = tmp_path / "prod.yaml"
    spec.write_text(PROD % free_port())
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("APPLIANCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WHO", "hush")
    yield spec
    main(["down", "composed"])


def test_everything_after_the_loader_sees_one_spec(
    prod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock", str(prod)]) == 0
    assert read_lock(tmp_path / "prod.lock").name == "composed"
    assert main(["apply", str(prod), "--locked"]) == 0
    kept = DeploymentState(tmp_path / "state", "composed").generation(1)
    assert "${env:WHO}" in kept.spec_text
    assert load_text(kept.spec_text, environ={"WHO": "x"}).spec.model.max_model_len == 256
    assert main(["drift", "composed"]) == 0
    assert main(["diff", str(prod)]) == 0

    base = tmp_path / "base.yaml"
    base.write_text(BASE.replace("256", "128"))
    capsys.readouterr()
    assert main(["drift", "composed"]) == 2
    assert str(prod) in capsys.readouterr().out
    assert main(["diff", str(prod)]) == 2
    assert "model.max_model_len" in capsys.readouterr().out
    assert main(["lock", str(prod), "--check"]) == 2
    base.unlink()
    assert main(["drift", "composed"]) == 2
