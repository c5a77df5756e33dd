"""The generated files are fresh, and the JSON Schema agrees with the loader."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from appliance.catalog.rules import SUMMARIES
from appliance.cli import schema as schema_verb
from appliance.spec import load_spec
from appliance.spec.paths import parse_path
from appliance.spec.reference import reference_text, refused_text
from appliance.spec.schema import deployment_schema, schema_text
from appliance.spec.starter import SOURCE, starter_text
from appliance.spec.tree import find, walk

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
STRUCTURAL = ("spec/unknown-key", "spec/missing", "value/")
LOADER_ONLY = {
    "bool-yes": "YAML 1.1 readers take yes for true",
    "class-path": "dotted paths are not in the schema",
    "context-fraction": "whole numbers are not in the schema",
    "float-for-integer": "2.0 is an integer of JSON Schema",
    "integer-too-large": "an integer of JSON Schema has no end",
    "separators-in-number": "YAML 1.1 readers take 1_000 for a number",
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(deployment_schema())


def rules_of(file: Path) -> set[str]:
    return {line.split()[2] for line in file.read_text().splitlines() if line.startswith("# expect:")}


def data_of(text: str) -> Any:
    return yaml.safe_load(text)


def test_generated_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert schema_verb.run(check=True, root=str(ROOT)) == 0, capsys.readouterr().err


def test_stale_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema_verb.run(check=True, root=str(tmp_path)) == 2
    assert "schemas/deployment.v1.json is stale" in capsys.readouterr().err
    assert schema_verb.run(write=True, root=str(tmp_path)) == 0
    assert schema_verb.run(check=True, root=str(tmp_path)) == 0


def test_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(deployment_schema())
    assert json.loads(schema_text()) == deployment_schema()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_are_valid(file: Path, validator: jsonschema.Draft7Validator) -> None:
    loaded = load_spec(file, environ={})
    assert loaded.warnings == ()
    assert list(validator.iter_errors(data_of(file.read_text()))) == []


def test_there_are_examples() -> None:
    assert {"quickstart", "public-server", "batch-and-bench"} <= {file.stem for file in EXAMPLES}


def test_the_starter_is_valid(tmp_path: Path, validator: jsonschema.Draft7Validator) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(starter_text("spec.yaml", "starter", SOURCE))
    assert load_spec(file, environ={}).warnings == ()
    assert list(validator.iter_errors(data_of(file.read_text()))) == []


def structural() -> list[Path]:
    """Broken specs whose fault a schema can see. YAML 1.1 readers of editors take `yes` for a boolean."""
    files = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
    seen = [file for file in files if any(rule.startswith(STRUCTURAL) for rule in rules_of(file))]
    return [file for file in seen if file.stem not in LOADER_ONLY]


@pytest.mark.parametrize("file", structural(), ids=lambda file: file.stem)
def test_the_schema_sees_what_is_structural(file: Path, validator: jsonschema.Draft7Validator) -> None:
    assert list(validator.iter_errors(data_of(file.read_text())))


def test_references_pass_the_schema(validator: jsonschema.Draft7Validator) -> None:
    text = "api_version: appliance/v1\nkind: Deployment\nname: a\nmodel: {source: x}\n"
    text += "endpoints:\n  http:\n    port: ${env:PORT}\ncache:\n  dtype: ${env:DTYPE:?which}\n"
    assert list(validator.iter_errors(data_of(text))) == []


def test_every_field_says_what_it_is() -> None:
    for found in walk():
        assert found.doc.doc.endswith((".", "sha256sum")), found.path
        assert found.allowed, found.path
        assert "auto" not in found.default_text or found.doc.auto or not found.doc.built, found.path
        assert find(parse_path(found.path.replace("[]", "[0]"))) is not None, found.path


def test_names_are_unlike_only_where_they_mean_other_things() -> None:
    """A name that is in two sections is a name of an item, or says the same of two things."""
    names: dict[str, list[str]] = {}
    for found in walk():
        names.setdefault(found.name, []).append(found.path)
    several = {name for name, paths in names.items() if len(paths) > 1}
    allowed = {"name", "source", "sha256", "revision", "model", "dtype", "quantization", "max_model_len", "seed"}
    allowed |= {
        "policy",
        "host",
        "port",
        "enabled",
        "metrics",
        "output_dir",
        "memory",
        "max_concurrency",
        "timeout",
        "kind",
        "level",
        "resolver",  # of a model, and of adapters: where they are
        "backend",  # of ranks and of a batch: who starts them
        "task",  # of a model, and of the requests of a benchmark
        *("num_prompts", "input_len", "output_len"),  # of a benchmark, and of the gate of a new generation
    }
    assert several <= allowed, several - allowed


def test_what_this_version_refuses_is_not_suggested() -> None:
    scheduler = deployment_schema()["definitions"]["SchedulerSection"]["properties"]
    assert scheduler["disable_chunked_mm_input"]["doNotSuggest"]
    assert "doNotSuggest" not in scheduler["max_num_seqs"]


def test_each_field_stands_on_one_page() -> None:
    run, refused = reference_text(), refused_text()
    assert "| `source` |" in run
    assert "| `disable_chunked_mm_input` |" in refused
    assert "| `disable_chunked_mm_input` |" not in run
    assert "Not in this version" not in run
    assert run.count("\n| `") + refused.count("\n| `") == len(list(walk())) + len(SUMMARIES)
