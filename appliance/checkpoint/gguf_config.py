"""Translates GGUF metadata to a Hugging Face config: one table of keys, and additions of single families.

If GGUF leaves a value to llama.cpp's constants (Gemma's attention scale and window pattern), the constants of
llama.cpp's model loader are used, so that a file has the same meaning as there.
"""

import struct
from typing import Any, Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf import GgufFile, GgufTensor, plain
from appliance.checkpoint.gguf_architectures import ARCHITECTURES, HYBRIDS, LISTED, MIXTURES, named
from appliance.checkpoint.gguf_families import CHANGES

# By stored name: the file of the set that holds the tensor, and its directory entry.
StoredTensors = dict[str, tuple[GgufFile, GgufTensor]]

_KEYS: Final = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "logit_scale": "logit_scale",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
_OTHER_NUMBERS: Final = (
    "shortconv.l_cache",
    "full_attention_interval",
    "moe_latent_size",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.max_alibi_bias",
    "attention.q_lora_rank",
    "attention.scale",
    "attention.temperature_scale",
    "attention.value_scale",
    "kda.head_dim",
    "attention.value_length",
    "attention.value_length_mla",
    "interleave_moe_layer_step",
    "rope.dimension_count",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
)
_NO_MODELS: Final = {"adapter": "an adapter", "imatrix": "a record of activations"}  # by general.type
_KV_HEADS: Final = "attention.head_count_kv"
# If a file has these, the computation differs in ways that no family here can express, but for those that are named.
_REFUSED: Final = {
    "attention.kv_lora_rank": ("deepseek2", "kimi-linear", "minicpm3"),
    "attention.clamp_kqv": (),
    "attention.max_alibi_bias": ("mpt",),
    "expert_count": MIXTURES,
}


def gguf_architecture(file: GgufFile) -> str:
    """Returns the file's architecture name. Raises CheckpointError if it is missing or not supported."""
    name, kind = file.metadata.get("general.architecture"), file.metadata.get("general.type")
    if name == "clip" or kind == "mmproj":
        message = "is no model but the part of one that reads images or sound"
        raise CheckpointError(file.path.name, message, "name the model's own file, which runs without images")
    if kind in _NO_MODELS:
        message = f"is {_NO_MODELS[str(kind)]}, and no model"
        raise CheckpointError(file.path.name, message, "name the file of the model that it was made for")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(file.path.name, f"GGUF architecture {name!r} is not in this version", f"known: {known}")
    return str(name)


def translate_config(file: GgufFile, tensors: StoredTensors) -> dict[str, Any]:
    """Returns the Hugging Face config equivalent to the metadata. `tensors` are those of all shards."""
    architecture = gguf_architecture(file)
    values = _architecture_values(file, architecture)
    values["tensors"] = tensors.keys()
    config: dict[str, Any] = named(ARCHITECTURES[architecture])
    config |= {name: values[key] for key, name in _KEYS.items() if key in values}
    config["vocab_size"] = _vocab_size(file, tensors)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // max(1, config.get("num_attention_heads", 1))
    rotary = values.get("rope.dimension_count")
    if rotary is not None and head_dim and rotary != head_dim and architecture != "gpt2":
        config["partial_rotary_factor"] = rotary / head_dim
    config |= {"rope_scaling": scaling} if (scaling := _rope_scaling(values, tensors)) else {}
    config["use_qk_norm"] = any(name.endswith("attn_q_norm.weight") for name in tensors)
    if change := CHANGES.get(architecture):
        change(config, values)
    return config | _biases(tensors) | _token_ids(file)


def _biases(tensors: StoredTensors) -> dict[str, bool]:
    """Returns which projections have biases; nothing where query, key and value are one tensor, which fixes it."""
    if not any(name.endswith("attn_q.weight") for name in tensors):
        return {}
    endings = {"attention_bias": "attn_q.bias", "attention_out_bias": "attn_output.bias", "mlp_bias": "ffn_down.bias"}
    return {key: any(name.endswith(ending) for name in tensors) for key, ending in endings.items()}


def _architecture_values(file: GgufFile, architecture: str) -> dict[str, Any]:
    """Returns this architecture's metadata without the prefix. A per-layer list of equal entries becomes one value."""
    prefix, values = f"{architecture}.", {}
    for key, value in file.metadata.items():
        if not key.startswith(prefix):
            continue
        short, value = key.removeprefix(prefix), plain(value)
        if isinstance(value, list) and short in _KEYS:
            different = set(value)
            if architecture in HYBRIDS and len(different) > 1:
                different.discard(0)
            if len(different) > 1 and short in LISTED.get(architecture, ()):
                values[f"{short}.layers"] = value
                different = {value[0]}
            if short == _KV_HEADS:
                values["attends"] = [heads != 0 for heads in value]
            if len(different) != 1:
                raise CheckpointError(file.path.name, f"{key} differs between layers, which is not in this version")
            value = different.pop()
        values[short] = value
    for key in (*_KEYS, *_OTHER_NUMBERS):
        if key in values and not _is_sane_number(values[key]):
            raise CheckpointError(file.path.name, f"{prefix}{key} is {values[key]!r}; a number is expected")
    for key, allowed in _REFUSED.items():
        if values.get(key) and architecture not in allowed:
            raise CheckpointError(
                file.path.name, f"{prefix}{key} = {values[key]} is not in this version for GGUF files"
            )
    return values


def _is_sane_number(value: Any) -> bool:
    """Returns whether the value is zero, or a number that neither overflows nor underflows in use."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or 1e-30 < value < 1e30


def _vocab_size(file: GgufFile, tensors: StoredTensors) -> int:
    _, embedding = tensors.get("token_embd.weight", (file, None))
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(file.path.name, "there is no two-dimensional token_embd.weight")
    return embedding.shape[0]


def _rope_scaling(values: dict[str, Any], tensors: StoredTensors) -> dict[str, Any] | None:
    """Returns `rope_scaling` as in transformers.

    Llama 3.x files have their scaling as one divisor for each frequency. "longrope" with equal short and long factors
    and attention_factor 1 is the same computation, so no further kind is needed.
    """
    context = values.get("context_length", 0)
    original = values.get("rope.scaling.original_context_length") or context or 1
    if (freqs := _factors(tensors, "rope_freqs.weight")) is not None:
        same = {"short_factor": freqs, "long_factor": freqs}
        return {"rope_type": "longrope", "attention_factor": 1.0, "original_max_position_embeddings": context, **same}
    long, short = (_factors(tensors, f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    scaling: dict[str, Any] = {}
    if long is not None and short is not None:
        factor = values.get("rope.scaling.attn_factor")
        scaling |= {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        scaling |= {"attention_factor": factor} if factor else {"factor": context / original}
        return scaling | {"original_max_position_embeddings": original}
    kind = values.get("rope.scaling.type", "none")
    if kind in ("none", "longrope"):  # longrope without factors does not scale
        return None
    scaling |= {"rope_type": kind, "factor": values.get("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        scaling |= {"original_max_position_embeddings": original}
        bounds = {name: values.get(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        scaling |= {name: bound for name, bound in bounds.items() if bound is not None}
    return scaling


def _factors(tensors: StoredTensors, name: str) -> list[float] | None:
    if name not in tensors:
        return None
    file, tensor = tensors[name]
    if tensor.storage != "f32" or tensor.size_bytes > 4096:
        raise CheckpointError(file.path.name, f"{name} must be a short f32 vector, not {tensor.storage} {tensor.shape}")
    return [value for (value,) in struct.iter_unpack("<f", file.read(tensor))]


def _token_ids(file: GgufFile) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {key: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: value for key, value in found.items() if value is not None}
