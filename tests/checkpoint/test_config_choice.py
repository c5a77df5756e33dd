"""A config in place of the checkpoint's, and values in place of some of a config's."""

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint import CheckpointError, FetchOptions, read_model_facts, resolve_source
from appliance.checkpoint.config import normalize_config
from appliance.checkpoint.config_choice import ConfigChoice, merged, new_keys
from appliance.checkpoint.facts import ModelFacts

from .files import write_folder, write_gguf
from .test_folder import CONFIG
from .test_hub import FOLDER, Start

NEWER = {**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5}}


def read(root: Path, **changes: Any) -> ModelFacts:
    return read_model_facts(root, None, None, ConfigChoice(**changes))


def test_parts_are_merged_key_by_key_and_other_values_replaced() -> None:
    config = {"text_config": {"a": 1, "b": {"c": 2, "d": 3}}, "quantization_config": {"quant_method": "fp8", "x": 1}}
    found = merged(config, {"text_config": {"b": {"c": 4}}, "quantization_config": {"quant_method": "awq"}, "new": 5})
    assert found["text_config"] == {"a": 1, "b": {"c": 4}}
    assert (found["quantization_config"], found["new"]) == ({"quant_method": "awq"}, 5)
    assert list(new_keys(config, {"text_config": {"a": 0, "e": 0}, "new": 5})) == ["text_config.e", "new"]


def test_a_key_of_the_language_model_is_refused_beside_it() -> None:
    with pytest.raises(CheckpointError, match="rope_theta is a key of text_config") as caught:
        merged({"text_config": {"rope_theta": 1.0}}, {"rope_theta": 2.0})
    assert "text_config: {rope_theta: ...}" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("overrides", "theta", "kind", "share"),
    [
        ({"rope_theta": 9.0}, 9.0, "default", 0.5),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 7.0, "linear", 0.5),
        ({"rope_scaling": None, "rope_theta": 9.0}, 9.0, "default", 0.5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}, 3.0, "default", 1.0),
    ],
)
def test_rotary_values_of_either_age_count(overrides: dict[str, Any], theta: float, kind: str, share: float) -> None:
    rope = normalize_config(merged(NEWER, overrides)).layers[0].rope
    assert rope is not None
    assert (rope.theta, rope.kind, rope.partial_factor) == (theta, kind, share)


def test_all_of_a_folder_follows_from_the_merged_config(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    (root / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    found = read(root, overrides={"architectures": ["X"], "num_key_value_heads": 4, "eos_token_id": [3, 4], "extra": 1})
    assert (found.architecture, found.geometry.num_kv_heads) == ("X", 4)
    assert found.tokenizer.eos_token_ids == (3, 4), "what the spec says comes before generation_config.json"
    assert found.added_keys == ("extra",)
    assert read(root).tokenizer.eos_token_ids == (7,)


def test_the_config_may_lie_elsewhere(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "model", CONFIG)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / "config.json").rename(elsewhere / "config.json")
    with pytest.raises(CheckpointError):
        read(root)
    found = read(root, path=str(elsewhere))
    assert found.config == CONFIG
    assert read(root, path=str(elsewhere / "config.json")) == found
    (elsewhere / "config.json").write_text(json.dumps({**CONFIG, "rms_norm_eps": 0.5}))
    assert read(root, path=str(elsewhere)).header_sha256 != found.header_sha256, "another config is another checkpoint"


def test_a_gguf_file_takes_both(tmp_path: Path) -> None:
    file, other = write_gguf(tmp_path / "m.gguf"), tmp_path / "config.json"
    own = read(file)
    found = read(file, overrides={"rope_theta": 9.0, "eos_token_id": 5, "architectures": ["MistralForCausalLM"]})
    assert (found.architecture, found.tokenizer.eos_token_ids) == ("MistralForCausalLM", (5,))
    assert found.config == {**own.config, "rope_theta": 9.0, "eos_token_id": 5, "architectures": ["MistralForCausalLM"]}
    other.write_text(json.dumps({**CONFIG, "max_position_embeddings": 77}))
    replaced = read(file, path=str(tmp_path))
    assert (replaced.geometry.max_position, replaced.tensors) == (77, own.tensors)
    assert replaced.header_sha256 != own.header_sha256
    other.write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read(file, path=str(other))


def test_of_a_repository_only_the_config_is_fetched(tmp_path: Path, hub: Start) -> None:
    server = hub(o__m=FOLDER, o__none={"README.md": b"words"})
    options = FetchOptions(cache_dir=tmp_path / "cache", base_dir=tmp_path, timeout_s=2.0, only="config")
    found = resolve_source("o/m", options=options)
    assert [file.name for file in found.iterdir()] == ["config.json"]
    assert not any("safetensors" in each for each in server.requests)
    with pytest.raises(CheckpointError, match="has no config"):
        resolve_source("o/none", options=options)
