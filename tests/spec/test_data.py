"""Our own readers of a spec agree with pydantic's."""

from pathlib import Path

import pytest

from appliance.spec import DeploymentSpec, load_spec
from appliance.spec.data import as_data
from appliance.spec.validate import validate

EXAMPLES = sorted(Path("docs/examples").glob("*.yaml"))
HEAD = {"api_version": "appliance/v1", "kind": "Deployment", "name": "test"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_spec_as_data(path: Path) -> None:
    spec = load_spec(path).spec
    assert as_data(spec) == spec.model_dump(mode="json")


def test_a_secret_is_masked() -> None:
    spec, _ = validate(HEAD | {"model": {"source": "m"}, "loading": {"hf_token": "hf_secret"}})
    assert spec is not None
    assert as_data(spec)["loading"]["hf_token"] == spec.model_dump(mode="json")["loading"]["hf_token"]
    assert "hf_secret" not in str(as_data(spec))


def test_sections_apart_are_the_spec_as_a_whole() -> None:
    data = HEAD | {"model": {"source": "m"}, "slo": {"ttft_p95": "1s"}, "lora": None}
    spec, errors = validate(data)
    assert (spec, errors) == (DeploymentSpec.model_validate(data), [])
    assert spec is not None
    assert spec.model_fields_set == set(data)
