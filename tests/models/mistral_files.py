"""Tiny checkpoints in Mistral's own format, made of transformers' modules."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.models.tiny import make_tiny

_TOP = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
_MODULES = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def write_mistral(name: str, folder: Path) -> torch.nn.Module:
    """Writes model `name` as Mistral would; returns it as the oracle."""
    model = make_tiny(name, folder / "plain")
    config = json.loads((folder / "plain" / "config.json").read_text())
    (folder / "params.json").write_text(json.dumps(params_of(config)))
    tensors: dict[str, torch.Tensor] = {}
    for key, value in model.state_dict().items():
        tensors |= _renamed(key.removesuffix(".weight"), value, config)
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, folder / "consolidated.safetensors")
    return model


def params_of(config: dict[str, Any]) -> dict[str, Any]:
    own = {
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"], "hidden_dim": config["intermediate_size"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "norm_eps": config["rms_norm_eps"], "vocab_size": config["vocab_size"],
        "rope_theta": config["rope_parameters"]["rope_theta"], "sliding_window": config["sliding_window"],
        "model_type": "transformer", "max_seq_len": config["max_position_embeddings"],
    }  # fmt: skip
    if config["model_type"] == "mixtral":
        own["moe"] = {
            "num_experts": config["num_local_experts"], "num_experts_per_tok": config["num_experts_per_tok"],
        }  # fmt: skip
    return own


def _renamed(module: str, value: torch.Tensor, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
    if layer is None:
        return {f"{_TOP[module]}.weight": value}
    place, inner = f"layers.{layer[1]}", layer[2]
    if inner.endswith(("q_proj", "k_proj")):  # pairs that are rotated together become neighbours
        heads = config["num_attention_heads" if inner.endswith("q_proj") else "num_key_value_heads"]
        value = value.reshape(heads, 2, -1, value.shape[1]).transpose(1, 2).reshape(value.shape)
    if inner in _MODULES:
        return {f"{place}.{_MODULES[inner]}.weight": value}
    if inner == "mlp.gate":
        return {f"{place}.feed_forward.gate.weight": value}
    if inner == "mlp.experts.gate_up_proj":
        halves = {"w1": value.chunk(2, 1)[0], "w3": value.chunk(2, 1)[1]}
    else:
        assert inner == "mlp.experts.down_proj"
        halves = {"w2": value}
    return {
        f"{place}.feed_forward.experts.{expert}.{part}.weight": stack[expert]
        for part, stack in halves.items()
        for expert in range(len(stack))
    }
