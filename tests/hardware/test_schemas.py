import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from appliance.hardware.library import profiles_dir
from appliance.hardware.schema import schema_texts

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.mark.parametrize("name", schema_texts())
def test_committed_schemas_are_fresh(name: str) -> None:
    assert (SCHEMAS / name).read_text() == schema_texts()[name], "run appliance schema --write"


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(schema_texts()[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_profiles_and_facts_obey_their_schemas() -> None:
    profiles: list[Path] = list(profiles_dir().glob("*.yaml"))
    facts = list((profiles_dir() / "hardware").glob("*.json"))
    assert profiles
    assert facts
    for path in profiles:
        validator("profile.v1.json").validate(yaml.safe_load(path.read_text()))
    for path in facts:
        validator("hardware.v1.json").validate(json.loads(path.read_text()))


def test_the_profile_schema_asks_for_one_operator() -> None:
    document = yaml.safe_load((profiles_dir() / "cpu-avx2.yaml").read_text())
    document["match"][0]["at_least"] = 3
    with pytest.raises(jsonschema.ValidationError):
        validator("profile.v1.json").validate(document)
