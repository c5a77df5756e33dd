import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.checkpoint import CheckpointError, read_model_facts

from .files import write_folder

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def put(root: Path, name: str, value: Any) -> None:
    (root / name).write_text(value if isinstance(value, str) else json.dumps(value))


def test_a_folder(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    facts = read_model_facts(root)
    assert (facts.architecture, facts.format, facts.quantization) == ("LlamaForCausalLM", "safetensors", None)
    assert facts.config == CONFIG
    assert (facts.tokenizer.kind, facts.tokenizer.chat_template) == ("none", None)
    assert (facts.tokenizer.bos_token_id, facts.tokenizer.eos_token_ids) == (1, (2,))
    assert facts.geometry.head_dim == 16
    assert facts.size_bytes == 16


def test_generation_config_has_the_last_word_on_ends(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    put(root, "generation_config.json", {"eos_token_id": [7, 5, 7], "temperature": 0.6})
    facts = read_model_facts(root)
    assert facts.tokenizer.eos_token_ids == (7, 5)
    assert facts.generation_config["temperature"] == 0.6


def test_ends_that_the_model_cannot_give_are_left_out_by_name(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    put(root, "generation_config.json", {"eos_token_id": [0, 99999, -1, "2", True, 2.0, None, 0], "bos_token_id": 32})
    tokenizer = read_model_facts(root).tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (0,))  # BOS is config.json's
    assert [str(each) for each in tokenizer.left_out] == [
        f"generation_config.json: {field} is {value}, which is left out; a token id from 0 to 31 is expected"
        for field, value in [
            *(("eos_token_id", value) for value in ("99999", "-1", "'2'", "True", "2.0", "None")),
            ("bos_token_id", "32"),
        ]
    ]


@pytest.mark.parametrize(
    ("of_generation", "ends"), [({"eos_token_id": 32}, (2,)), ({"eos_token_id": []}, (2,)), ({}, (2,))]
)
def test_a_file_without_an_end_of_the_model_is_passed_over(
    tmp_path: Path, of_generation: dict[str, Any], ends: tuple[int, ...]
) -> None:
    root = write_folder(tmp_path, CONFIG)
    put(root, "generation_config.json", of_generation)
    assert read_model_facts(root).tokenizer.eos_token_ids == ends


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"eos_token": "<end>", "added_tokens_decoder": {"5": {"content": "<end>"}, "6": {"content": "x"}}}, (2, 5)),
        ({"eos_token": {"content": "<end>"}, "added_tokens_decoder": {"2": {"content": "<end>"}}}, (2,)),
        ({"eos_token": "<end>", "added_tokens_decoder": {"99": {"content": "<end>"}}}, (2,)),
        ({"eos_token": "<end>", "added_tokens_decoder": {"x": {"content": "<end>"}, "5": "<end>"}}, (2,)),
        ({"eos_token": "<end>", "added_tokens_decoder": []}, (2,)),
        ({"eos_token": 5}, (2,)),
    ],
)
def test_the_tokenizers_own_end_ends_too(tmp_path: Path, settings: dict[str, Any], ends: tuple[int, ...]) -> None:
    root = write_folder(tmp_path, CONFIG)
    put(root, "tokenizer_config.json", settings)
    tokenizer = read_model_facts(root).tokenizer
    assert tokenizer.eos_token_ids == ends
    assert [each.field for each in tokenizer.left_out] == (["eos_token"] if "99" in str(settings) else [])


def test_chat_templates_in_transformers_order(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    put(
        root,
        "tokenizer_config.json",
        {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]},
    )
    assert read_model_facts(root).tokenizer.chat_template == "d"
    put(root, "tokenizer_config.json", {"chat_template": "plain"})
    assert read_model_facts(root).tokenizer.chat_template == "plain"
    put(root, "chat_template.json", {"chat_template": "json"})
    assert read_model_facts(root).tokenizer.chat_template == "json"
    put(root, "chat_template.jinja", "jinja")
    assert read_model_facts(root).tokenizer.chat_template == "jinja"


def test_tokenizer_kinds(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG)
    put(root, "tokenizer.model", "")
    tokenizer = read_model_facts(root).tokenizer
    assert (tokenizer.kind, tokenizer.add_bos) == ("sentencepiece", True)
    put(root, "tokenizer.json", {})
    tokenizer = read_model_facts(root).tokenizer
    assert (tokenizer.kind, tokenizer.add_bos) == ("tokenizer.json", False)


def test_the_digest_covers_what_decides_and_not_the_weights(tmp_path: Path) -> None:
    digests = [
        read_model_facts(write_folder(tmp_path / "a", CONFIG)).header_sha256,
        read_model_facts(
            write_folder(tmp_path / "b", CONFIG, {"model.norm.weight": np.zeros(4, np.float32)})
        ).header_sha256,
        read_model_facts(
            write_folder(tmp_path / "c", CONFIG, {"model.norm.weight": np.zeros(5, np.float32)})
        ).header_sha256,
        read_model_facts(write_folder(tmp_path / "d", CONFIG | {"rope_theta": 1e6})).header_sha256,
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_gpt2_names_get_their_prefix_and_its_weights_are_transposed(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}
    tensors = {"h.0.attn.c_attn.weight": np.zeros((8, 24), np.float32), "lm_head.weight": np.zeros((4, 8), np.float32)}
    facts = read_model_facts(write_folder(tmp_path, config | {"vocab_size": 4, "n_positions": 16}, tensors))
    assert [(tensor.name, tensor.stored_name) for tensor in facts.tensors] == [
        ("transformer.h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ]
    assert facts.stored.linear_is_transposed


def test_quantization_is_the_checkpoints_own_word(tmp_path: Path) -> None:
    root = write_folder(tmp_path, CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert read_model_facts(root).quantization == "gptq"
    put(root, "config.json", CONFIG | {"quantization_config": {}})
    with pytest.raises(CheckpointError, match="quant_method"):
        read_model_facts(root)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", "{", "config.json: is not valid JSON"),
        ("config.json", "[]", "not a JSON object"),
        ("config.json", json.dumps({**CONFIG, "architectures": []}), "architectures is missing"),
        ("generation_config.json", "nonsense", "generation_config.json"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    root = write_folder(tmp_path, CONFIG)
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointError, match=words):
        read_model_facts(root)


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_model_facts(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"neither config\.json, params\.json nor a \.gguf"):
        read_model_facts(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        put(tmp_path, name, "")
    with pytest.raises(CheckpointError, match=r"2 \.gguf models: a\.gguf, b\.gguf"):
        read_model_facts(tmp_path)
    put(tmp_path, "model.bin", "")
    with pytest.raises(CheckpointError, match=r"neither a \.gguf file nor a folder"):
        read_model_facts(tmp_path / "model.bin")
