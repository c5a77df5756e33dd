"""Every file that people write may begin with a byte order mark; in UTF-16 it is refused with a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.base.texts import MARK
from appliance.bench.scenario import Scenario
from appliance.bench.workload import make_workload
from appliance.checkpoint.read import read_model_facts
from appliance.cli.arguments.exchange import ImportArguments
from appliance.cli.import_ import run as import_file
from appliance.hardware.library import load_facts, load_profile, profiles_dir
from appliance.importing.command import read_here
from appliance.plan.key_file import read_key_file
from appliance.plan.prepare import load_model_facts, resolve_files
from appliance.text.loading import load_tokenizer
from tests.checkpoint.files import write_folder
from tests.checkpoint.test_folder import CONFIG
from tests.plan.machines import HEAD, MODEL, load, small_model
from tests.text.test_tokenizer import byte_level

Reader = Callable[[Path], Any]


def spec_with(text: str) -> Any:
    return load(MODEL + text)


def tokenizer_of(path: Path) -> Any:
    loaded = load_tokenizer(path.parent)
    return loaded.backend.to_str(), loaded.identity


def trace(path: Path) -> Any:
    return make_workload(Scenario(name="x", workload="trace", trace_file=str(path), num_prompts=1), 300)


READERS: dict[str, tuple[str, str, Reader]] = {
    "keys": ("keys.json", '{"keys": []}', read_key_file),
    "config": ("config.json", json.dumps(CONFIG), lambda path: read_model_facts(path.parent).config),
    "generation": (
        "generation_config.json", '{"top_k": 7}', lambda path: read_model_facts(path.parent).generation_config,
    ),
    "template": ("chat_template.jinja", "{{ messages }}", lambda path: read_model_facts(path.parent).tokenizer),
    "tokenizer": ("tokenizer.json", byte_level("qwen2").to_str(), tokenizer_of),
    "tokenizer settings": ("tokenizer_config.json", '{"eos_token": "<|end|>"}', tokenizer_of),
    "tokenizer template": ("chat_template.jinja", "{{ messages }}", tokenizer_of),
    "profile": ("p.yaml", (profiles_dir() / "cpu-avx2.yaml").read_text(), load_profile),
    "hardware": (
        "machine.json", (profiles_dir() / "hardware" / "laptop-ryzen-7-7840u.json").read_text(), load_facts,
    ),
    "model facts": ("facts.json", msgspec.json.encode(small_model()).decode(), load_model_facts),
    "the spec's template": (
        "t.jinja", "{{ messages }}",
        lambda path: resolve_files(spec_with("  chat_template: t.jinja\n"), path.parent).chat_template,
    ),
    "the spec's generation config": (
        "g.json", '{"top_k": 7}',
        lambda path: resolve_files(spec_with("decoding: {generation_config: g.json}\n"), path.parent).generation_config,
    ),
    "a trace": ("trace.jsonl", '{"prompt": [1, 2], "output_len": 3}\n', trace),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = write_folder(tmp_path, CONFIG)
    (root / "tokenizer.json").write_text(byte_level("qwen2").to_str())
    return root


@pytest.mark.parametrize("name", READERS)
def test_a_mark_changes_nothing(folder: Path, name: str) -> None:
    file, text, read = READERS[name]
    path = folder / file
    path.write_text(text)
    plain = read(path)
    path.write_bytes(MARK + text.encode())
    assert read(path) == plain


@pytest.mark.parametrize("name", READERS)
def test_utf_16_is_refused_with_a_sentence(folder: Path, name: str) -> None:
    file, text, read = READERS[name]
    path = folder / file
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(ApplianceError, match="is UTF-16 text, and UTF-8 is expected") as caught:
        read(path)
    assert path.name in str(caught.value) or path.stem in str(caught.value)
    assert caught.value.hint == "save it as UTF-8"


def test_a_secret_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(MARK + b"12345\r\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(HEAD + MODEL + 'loading: {hf_token: "${file:token}"}\n')
    from appliance.spec import load_spec

    token = load_spec(spec, environ={}).spec.loading.hf_token
    assert token is not None
    assert token.get_secret_value() == "12345"
    (tmp_path / "token").write_text("12345", encoding="utf-16")
    with pytest.raises(ApplianceError, match="token is UTF-16 text"):
        load_spec(spec, environ={})


def test_imported_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Modelfile"
    text = "FROM hf.co/o/n\r\nPARAMETER temperature 0.5\r\n"
    outputs = []
    for data in (text.encode(), MARK + text.encode(), text.replace("\r\n", "\n").encode()):
        file.write_bytes(data)
        assert import_file(ImportArguments(kind="modelfile", words=(str(file),))) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    assert "temperature: 0.5" in outputs[0]
    file.write_text(text, encoding="utf-16")
    with pytest.raises(ApplianceError, match="Modelfile is UTF-16 text"):
        import_file(ImportArguments(kind="modelfile", words=(str(file),)))
    assert read_here(str(file)) is None
