"""Command lines of public documentation become valid specs, and no word of them is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.cli.app import main
from appliance.importing.command import import_command, import_config
from appliance.importing.draft import CannotImportError, Imported
from appliance.importing.launch import read_launch
from appliance.importing.vllm_fields import SHORT, arity, fields
from appliance.importing.vllm_without import VALUES_WITHOUT, WITHOUT
from appliance.importing.words import Arity, read_arguments, split_commands
from appliance.spec.tree import walk
from tests.importing.imports import at, errors_of

COMMANDS = (Path(__file__).parent / "commands.txt").read_text().strip().split("\n\n")


def test_there_are_enough_commands() -> None:
    assert len(set(COMMANDS)) == len(COMMANDS) >= 40


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_documentation_becomes_a_valid_spec(command: str) -> None:
    assert errors_of(import_command(command).document) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_no_argument_is_dropped(command: str) -> None:
    found = import_command(command)
    told = [*found.placed.values(), *found.notes, *(each.origin for each in found.unplaced)]
    words = split_commands(command)[0]
    start = next(index for index, word in enumerate(words) if word == "vllm" or word.startswith("python"))
    for option in read_arguments(read_launch(command).arguments, arity, SHORT).options:
        if option.name != "model":
            assert any(text.startswith(option.flag) for text in told), option
    for word in words[:start]:
        assert any(text == word for text in told), word


def imported(arguments: str) -> Imported:
    return import_command(f"vllm serve owner/name {arguments}")


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("", "model.source", "owner/name"),
        ("-tp 2 --tensor-parallel-size 4", "parallelism.tensor", 4),
        ("--max-model-len=32k", "model.max_model_len", "32k"),
        ("--no-enable-prefix-caching", "cache.prefix_caching", False),
        ("--disable-fastapi-docs", "endpoints.http.enable_docs", False),
        ("--disable-log-stats", "observability.metrics.enabled", False),
        ("--swap-space 4", "hardware.memory.swap_space", "4GiB"),
        ("--kv-cache-memory-bytes 1073741824", "hardware.memory.kv_cache", "1GiB"),
        ("--served-model-name a b", "model.served_names", ["a", "b"]),
        ("--allowed-origins '[\"https://a.example\"]'", "endpoints.cors.allowed_origins", ["https://a.example"]),
        ("--download-dir $HF_HOME/x", "loading.download_dir", "${env:HF_HOME}/x"),
        (
            "--speculative-config.method ngram --speculative-config.num_speculative_tokens 3",
            "speculative.num_tokens",
            3,
        ),
        (
            '--speculative-config \'{"model": "org/small", "num_speculative_tokens": 5}\'',
            "speculative.model",
            "org/small",
        ),
        (
            '--speculative-config \'{"method": "draft_model", "model": "org/small", "revision": "r1"}\'',
            "speculative",
            {"method": "draft_model", "model": "org/small", "revision": "r1"},
        ),
        ("--kv-cache-dtype int8_per_token_head", "cache.dtype", "int8"),
        ("-O3", "compilation.level", 3),
        ("--lora-modules a=/x b=/y", "lora.adapters", [{"name": "a", "source": "/x"}, {"name": "b", "source": "/y"}]),
        ("--host 0.0.0.0", "endpoints.auth.allow_public_without_keys", True),
    ],
)
def test_arguments_have_their_fields(arguments: str, path: str, value: Any) -> None:
    assert at(imported(arguments).document, path) == value


def test_what_the_spec_does_not_take_is_listed_with_the_reason() -> None:
    found = imported("--kv-cache-dtype turboquant --made-up 1 2 --max-num-seqs many --data-parallel-rank 0")
    reasons = {each.origin: each.reason for each in found.unplaced}
    assert reasons["--made-up 1 2"] == "the spec has no such field"
    assert "turboquant" in reasons["--kv-cache-dtype turboquant"]
    assert "--max-num-seqs many" in reasons
    assert "cache" not in found.document


@pytest.mark.parametrize("name", list(WITHOUT))
def test_what_has_no_meaning_here_is_listed_with_the_reason(name: str) -> None:
    flag = f"--{name.replace('_', '-')}" + ("" if WITHOUT[name].arity is Arity.NONE else " 7")
    found = import_command(f"vllm serve {flag} org/model")
    assert at(found.document, "model.source") == "org/model"  # which no flag took as its value
    assert [(each.origin, each.reason) for each in found.unplaced] == [(flag, WITHOUT[name].reason)]
    assert name not in {found for field in walk() for found in (field.name, field.doc.vllm)}


@pytest.mark.parametrize(("name", "value"), list(VALUES_WITHOUT))
def test_values_that_have_no_meaning_here_are_listed_with_the_reason(name: str, value: str) -> None:
    found = imported(f"--{name.replace('_', '-')} {value}")
    assert [each.reason for each in found.unplaced] == [VALUES_WITHOUT[name, value]]
    assert value not in fields()[name].allowed.replace(" or ", ", ").split(", ")


def test_a_key_is_kept_as_its_digest_alone() -> None:
    found = imported("--api-key secret-one $KEY")
    text = json.dumps([found.document, found.placed, found.notes, [each.origin for each in found.unplaced]])
    assert "secret-one" not in text
    assert len(at(found.document, "endpoints.auth.keys")) == 1
    assert [each.origin for each in found.unplaced] == ["--api-key $KEY"]


def test_a_configuration_file_is_the_same_as_its_command() -> None:
    config = "model: owner/name\nport: 12312\nuvicorn-log-level: info\nserved_model_name: [a, b]\nmade-up: 1\n"
    found = import_config(config)
    command = imported("--port 12312 --uvicorn-log-level info --served-model-name a b")
    assert found.document == command.document
    assert [each.origin for each in found.unplaced] == ["made-up: 1"]


@pytest.mark.parametrize(
    "arguments",
    [
        "--port 8000 org/model",
        "--tensor-parallel-size=2 --host 127.0.0.1 org/model",
        "--enable-prefix-caching org/model",
        "--no-enable-chunked-prefill --made-up-limit=3 org/model",
        "--disable-something-new org/model",
        '--speculative-config \'{"method": "ngram"}\' -tp 2 org/model',
        "--middleware a.b --allowed-origins '[\"*\"]' org/model",
        "-O3 --rope-scaling '{\n  \"factor\": 2}' org/model",
        "--model org/model --served-model-name a b",
        "--made-up-limit org/model --max-num-seqs 4",
    ],
)
def test_the_model_is_found_wherever_it_stands(arguments: str) -> None:
    assert at(import_command(f"vllm serve {arguments}").document, "model.source") == "org/model"


def test_a_guessed_model_is_told() -> None:
    found = import_command("vllm serve --made-up-limit 3 org/model")
    assert at(found.document, "model.source") == "org/model"
    assert "--made-up-limit is not known; the word after it, org/model, is taken as the model" in found.notes
    assert [each.origin for each in found.unplaced] == ["--made-up-limit 3"]


def test_a_list_before_the_model_takes_it_as_vllm_does() -> None:
    with pytest.raises(CannotImportError, match="names no model"):
        import_command("vllm serve --served-model-name a org/model")


def test_one_wrong_member_of_an_object_is_left_alone() -> None:
    found = imported('--override-generation-config \'{"temperature": 0.5, "top_p": 7}\'')
    assert at(found.document, "decoding.override_generation_config") == {"temperature": 0.5}
    assert [each.origin for each in found.unplaced] == ["--override-generation-config top_p=7"]


def test_the_file_of_an_argument_is_read_and_the_line_has_the_last_word(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("model: owner/name\nport: 12312\nmax-model-len: 4096\nmade-up: 1\n")
    found = import_command(f"vllm serve --config {file} --port 9000")
    assert found.document["model"] == {"source": "owner/name", "max_model_len": 4096}
    assert at(found.document, "endpoints.http.port") == 9000
    assert [each.origin for each in found.unplaced] == ["made-up: 1"]
    lost = import_command("vllm serve owner/name --config nowhere.yaml")
    assert [(each.origin, "cannot be read" in each.reason) for each in lost.unplaced] == [
        ("--config nowhere.yaml", True)
    ]


@pytest.mark.parametrize("text", ["", "ls -l", "vllm bench serve", "vllm serve", "vllm serve 'x", "python server.py"])
def test_what_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(CannotImportError):
        import_command(text)


def test_the_verb_prints_yaml_and_answers_two_when_strict(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve owner/name --made-up 1"
    assert main(["import", "vllm", command]) == 0
    text = capsys.readouterr().out
    assert "# no equivalent: --made-up 1" in text
    assert errors_of(yaml.safe_load(text)) == []
    assert main(["import", "vllm", command, "--strict"]) == 2
    assert main(["import", "docker", command]) == 2
    assert "known: vllm" in capsys.readouterr().err
