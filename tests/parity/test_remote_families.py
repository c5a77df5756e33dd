"""Families whose code transformers does not have: a tiny checkpoint of a family that it has, under their names.

The oracle is the model of the other family, which computes the same.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.interface import KernelSet
from appliance.layers.spec import AttentionSpec
from appliance.models.describe import build_decoder
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.test_families import PROMPT, TOLERANCE

Json = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def _baichuan(config: Json, tensors: Tensors) -> tuple[Json, Tensors]:
    for layer in range(config["num_hidden_layers"]):
        root = f"model.layers.{layer}.self_attn"
        parts = [tensors.pop(f"{root}.{name}_proj.weight") for name in "qkv"]
        tensors[f"{root}.W_pack.weight"] = torch.cat(parts)
    return {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan"}, tensors


def _internlm2(config: Json, tensors: Tensors) -> tuple[Json, Tensors]:
    names = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    groups, heads = config["num_key_value_heads"], config["num_attention_heads"]
    for layer in range(config["num_hidden_layers"]):
        root = f"model.layers.{layer}"
        q, k, v = (tensors.pop(f"{root}.self_attn.{name}_proj.weight") for name in "qkv")
        split = [q.reshape(groups, heads // groups, -1, q.shape[1])]
        split += [each.reshape(groups, 1, -1, q.shape[1]) for each in (k, v)]
        tensors[f"{root}.attention.wqkv.weight"] = torch.cat(split, dim=1).reshape(-1, q.shape[1]).contiguous()
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False}, tensors


def _minicpm(config: Json, tensors: Tensors) -> tuple[Json, Tensors]:
    """Granite's multipliers by MiniCPM's names."""
    return {
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "scale_emb": config["embedding_multiplier"],
        "scale_depth": config["residual_multiplier"] * config["num_hidden_layers"] ** 0.5,
        "dim_model_base": config["hidden_size"] / config["logits_scaling"],
    }, tensors


def _chatglm(config: Json, tensors: Tensors) -> tuple[Json, Tensors]:
    names = {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
        "model.layers": "transformer.encoder.layers",
        "self_attn.o_proj": "self_attention.dense",
        "mlp.gate_up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    for layer in range(config["num_hidden_layers"]):
        root = f"model.layers.{layer}"
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"{root}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            tensors[f"{root}.self_attention.query_key_value.{kind}"] = torch.cat(parts)
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    tensors["transformer.rotary_pos_emb.inv_freq"] = torch.ones(4)
    theta = config.pop("rope_parameters")["rope_theta"]
    own = {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "num_layers": config.pop("num_hidden_layers"),
        "ffn_hidden_size": config.pop("intermediate_size"),
        "kv_channels": config.pop("head_dim"),
        "padded_vocab_size": config.pop("vocab_size"),
        "seq_length": config.pop("max_position_embeddings"),
        "layernorm_epsilon": config.pop("rms_norm_eps"),
        "multi_query_attention": True,
        "multi_query_group_num": config.pop("num_key_value_heads"),
        "add_qkv_bias": config.pop("attention_bias"),
        "rope_ratio": theta / 10_000.0,
        "original_rope": True,
        "rmsnorm": True,
        "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False,
    }
    return own, tensors


FAMILIES: dict[str, tuple[str, Callable[[Json, Tensors], tuple[Json, Tensors]]]] = {
    "baichuan": ("llama-equal", _baichuan),
    "chatglm": ("glm", _chatglm),
    "internlm2": ("llama", _internlm2),
    "minicpm": ("granite-plain", _minicpm),
}


@pytest.fixture(scope="session")
def renamed(tiny: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            other, rename = FAMILIES[name]
            original, folder = tiny(other), tmp_path_factory.mktemp(name)
            config = json.loads((original.folder / "config.json").read_text())
            changed, tensors = rename(config, load_file(original.folder / "model.safetensors"))
            write(folder, config | changed, tensors)
            made[name] = Checkpoint(folder, read_model_facts(folder), original.oracle)
        return made[name]

    return get


def write(folder: Path, config: Json, tensors: Tensors) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_other_family(
    name: str, renamed: Callable[[str], Checkpoint], kernel_set: KernelSet
) -> None:
    checkpoint = renamed(name)
    bounds = execution_of(max_model_len=64)
    driver = Driver(bind(checkpoint.facts, kernel_set, execution=bounds), bounds)
    expected = checkpoint.logits(PROMPT).numpy()
    np.testing.assert_allclose(driver.all_logits(PROMPT), expected, **TOLERANCE)


def test_a_ratio_multiplies_the_base_of_chatglms_rotation(renamed: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    original = renamed("chatglm")
    config = json.loads((original.folder / "config.json").read_text())
    write(tmp_path, config | {"rope_ratio": 50}, load_file(original.folder / "model.safetensors"))
    mixers = [layer.mixer for layer in build_decoder(read_model_facts(tmp_path), 64).layers]
    assert mixers
    assert all(isinstance(each, AttentionSpec) and each.rope is not None for each in mixers)
    assert [each.rope.theta for each in mixers] == [500_000.0] * len(mixers)  # type: ignore[union-attr]


def test_a_larger_baichuan_has_alibi_and_a_head_of_unit_rows(
    renamed: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    original = renamed("baichuan")
    config = json.loads((original.folder / "config.json").read_text())
    limit = config.pop("max_position_embeddings")
    tensors = load_file(original.folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name].repeat(125_696 // len(tensors[name]), 1)
    write(tmp_path, config | {"model_max_length": limit, "vocab_size": 125_696}, tensors)
    spec = build_decoder(read_model_facts(tmp_path), 64)
    mixers = [layer.mixer for layer in spec.layers]
    assert mixers
    assert all(isinstance(each, AttentionSpec) and each.rope is None and each.alibi == 8 for each in mixers)
    assert spec.weights["head"].transform == "unit_rows"
