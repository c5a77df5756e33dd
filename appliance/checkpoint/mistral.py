"""Reads Mistral's own format: `params.json` as a Hugging Face config, and `consolidated*.safetensors` by its names.

Rows of queries and keys lie as they do in files of GGUF's "llama": permuted for interleaved rotation.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.safetensors import read_header, read_shards

FORM: Final = "mistral"  # by load_format, config_format and facts
TOKENIZER_MODE: Final = "mistral"  # by the spec; its parser of tool calls has this name too
CONFIG_NAME: Final = "params.json"
TOKENIZER_NAME: Final = "tekken.json"
PATTERN: Final = "consolidated*.safetensors"

_INDEX: Final = "consolidated.safetensors.index.json"
_BOS, _EOS = 1, 2  # in every vocabulary of Mistral
_MAX_POSITION: Final = 32_768  # that of the models whose file states none
_NAMES: Final = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "rms_norm_eps": "norm_eps",
    "vocab_size": "vocab_size",
    "head_dim": "head_dim",
    "num_key_value_heads": "n_kv_heads",
    "tie_word_embeddings": "tied_embeddings",
    "hidden_act": "activation",
    "dtype": "dtype",
}
_READ: Final = (*_NAMES.values(), "rope_theta", "sliding_window", "max_position_embeddings", "max_seq_len", "moe",
                "quantization", "yarn", "llama_4_scaling")  # fmt: skip
_WITHOUT_USE: Final = ("model_type", "causal", "max_batch_size", "ragged_attention", "model_parallel")
_YARN: Final = {"factor": "factor", "beta": "beta_fast", "alpha": "beta_slow",
                "original_max_position_embeddings": "original_max_position_embeddings"}  # fmt: skip
_MODULES: Final = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
    "gate": "block_sparse_moe.gate",
}
_TOP: Final = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_SUFFIXES: Final = {"weight": "weight", "qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_LAYER: Final = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT: Final = re.compile(r"(?:feed_forward\.)?experts\.(\d+)\.(w[123])")


def config_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns params.json as the config that transformers would have for it.

    Raises CheckpointError for what changes the model and is not in this version.
    """
    for key, value in params.items():
        if value and key not in _READ and key not in _WITHOUT_USE:
            raise CheckpointError(CONFIG_NAME, f"{key} is stated, which is not in this version")
    if params.get("model_type") not in (None, "transformer") or params.get("causal") is False:
        raise CheckpointError(CONFIG_NAME, "states another model than a transformer that generates")
    architecture = "MixtralForCausalLM" if params.get("moe") else "MistralForCausalLM"
    architecture = "Ministral3ForCausalLM" if params.get("llama_4_scaling") else architecture
    config = {name: params[own] for name, own in _NAMES.items() if params.get(own) is not None}
    config |= {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "max_position_embeddings": params.get("max_position_embeddings") or params.get("max_seq_len") or _MAX_POSITION,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
        "rope_parameters": _rope(params),
    }
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    config.setdefault("tie_word_embeddings", False)
    return {**config, **_windows(params), **_experts(params), **_quantization(params)}


def read_tensors(root: Path) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Reads the tensors of a folder's consolidated files under the names of transformers' module, and the headers.

    Raises CheckpointError if there is no such file, or what reading it raises.
    """
    if (root / _INDEX).is_file():
        tensors, headers = read_shards(root, _INDEX, (".safetensors",), read_header)
    else:
        names = sorted(path.name for path in root.glob(PATTERN))
        if len(names) != 1:
            found = f"{len(names)} files {PATTERN} and no {_INDEX}" if names else f"there is no file {PATTERN}"
            raise CheckpointError(root.name, found)
        header = read_header(root, names[0])
        tensors, headers = header.tensors, [header.raw]
    return tuple(replace(tensor, name=_name(tensor)) for tensor in tensors), headers


def _name(tensor: TensorFacts) -> str:
    module, _, suffix = tensor.name.rpartition(".")
    layer = _LAYER.fullmatch(module)
    known = _TOP.get(module) if layer is None else _module(layer[2])
    if known is None or suffix not in _SUFFIXES:
        raise CheckpointError(tensor.file, f"tensor {tensor.name!r} is none that Mistral's decoders have")
    return f"{known}.{_SUFFIXES[suffix]}" if layer is None else f"model.layers.{layer[1]}.{known}.{_SUFFIXES[suffix]}"


def _module(name: str) -> str | None:
    expert = _EXPERT.fullmatch(name)
    return _MODULES.get(name) if expert is None else f"block_sparse_moe.experts.{expert[1]}.{expert[2]}"


def _rope(params: Mapping[str, Any]) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": params.get("rope_theta") or 10_000.0}
    yarn, scaling = dict(params.get("yarn") or {}), params.get("llama_4_scaling")
    if yarn:
        rope["rope_type"] = "yarn"
        if not yarn.pop("apply_scale", True):
            rope["attention_factor"] = 1.0
        rope |= {_YARN[key]: yarn.pop(key) for key in tuple(yarn) if key in _YARN}
    if yarn:
        raise CheckpointError(CONFIG_NAME, f"yarn states {', '.join(yarn)}, which is not in this version")
    if scaling:
        rope["llama_4_scaling_beta"] = scaling.get("beta")
        if rope.setdefault("original_max_position_embeddings", _original(scaling)) != _original(scaling):
            raise CheckpointError(CONFIG_NAME, "yarn and llama_4_scaling state two original_max_position_embeddings")
    return rope


def _original(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("original_max_position_embeddings")


def _windows(params: Mapping[str, Any]) -> dict[str, Any]:
    """One window of all layers, or a list of windows that is repeated over the layers; null is a layer without."""
    stated = params.get("sliding_window")
    if not isinstance(stated, list):
        return {"sliding_window": None if stated is None else int(stated)}
    sizes, layers = {size for size in stated if size}, params.get("n_layers")
    if len(sizes) > 1 or not stated or not isinstance(layers, int) or layers % len(stated):
        raise CheckpointError(
            CONFIG_NAME, f"sliding_window is {stated}; one size, in turns that fill the layers, is read"
        )
    kinds = ["sliding_attention" if size else "full_attention" for size in stated]
    return {"sliding_window": next(iter(sizes), None), "layer_types": kinds * (layers // len(kinds))}


def _experts(params: Mapping[str, Any]) -> dict[str, Any]:
    stated = params.get("moe")
    if not stated:
        return {}
    others = [key for key, value in stated.items() if value and key not in ("num_experts", "num_experts_per_tok")]
    if others:
        raise CheckpointError(CONFIG_NAME, f"moe states {', '.join(others)}, which is not in this version")
    return {"num_local_experts": stated.get("num_experts"), "num_experts_per_tok": stated.get("num_experts_per_tok")}


def _quantization(params: Mapping[str, Any]) -> dict[str, Any]:
    stated = params.get("quantization")
    if not stated:
        return {}
    if str(stated.get("quant_method", "")).lower().replace("_", "-") == "compressed-tensors":
        return {"quantization_config": {**stated, "quant_method": "compressed-tensors"}}
    if stated.get("qformat_weight") != "fp8_e4m3":
        raise CheckpointError(CONFIG_NAME, f"quantization is {dict(stated)}; fp8_e4m3 and compressed-tensors are read")
    return {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
