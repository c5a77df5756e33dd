"""What the metadata of Gemma 3n and 4 in GGUF files means beyond the common keys."""

from statistics import NormalDist
from typing import Any, Final

from appliance.checkpoint.dialect import MAX_LAYERS, size_of
from appliance.checkpoint.errors import CheckpointError

Json = dict[str, Any]

_NEVER: Final = 1e29  # llama.cpp divides frequencies of columns that do not rotate by 1e30
_LAYERS_WITH_KV: Final = 20  # of Gemma 3n, in llama.cpp's loader
_WIDTHS: Final = "feed_forward_length.layers"
_KV_HEADS: Final = "attention.head_count_kv.layers"


def change_gemma3n(config: Json, values: Json) -> None:
    """Files have a row of each token in the table of layer inputs."""
    layers = _common(config, values, every=5)
    config.setdefault("rope_theta", 1_000_000.0)
    config.setdefault("rope_local_base_freq", 10_000.0)
    config.setdefault("num_kv_shared_layers", max(layers - _LAYERS_WITH_KV, 0))
    names = {"altup.num_inputs": "altup_num_inputs", "altup.active_idx": "altup_active_idx"}
    config |= {name: values[key] for key, name in names.items() if key in values}
    scales = values.get("activation_sparsity_scale")
    if scales is not None:
        if not isinstance(scales, list) or not all(isinstance(scale, float) for scale in scales):
            raise CheckpointError("GGUF", f"activation_sparsity_scale is {scales!r}; a list of numbers is expected")
        config["activation_sparsity_pattern"] = [NormalDist().cdf(scale) for scale in scales]


def change_gemma4(config: Json, values: Json) -> None:
    """Files state the head size of full layers, and beside it that of windowed ones. Raises CheckpointError for widths
    and rotations that are not those of the family."""
    layers = _common(config, values, every=6)
    full = [index for index, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    wide = config.get("head_dim", 512)
    heads = values.get(_KV_HEADS) or [config.get("num_key_value_heads", 1)] * layers
    config["per_layer_config"] = {
        str(index): {"head_dim": wide, "num_key_value_heads": heads[index]} for index in full if index < len(heads)
    }
    config["head_dim"] = values.get("attention.key_length_swa", wide)
    windowed = [count for index, count in enumerate(heads) if index not in full]
    config["num_key_value_heads"] = next(iter(windowed or heads), 1)
    config["attention_k_eq_v"] = any(_has_no_values(values, index) for index in full)
    config["enable_moe_block"] = bool(config.get("num_local_experts"))
    config["use_double_wide_mlp"] = _is_double(config, values)
    config["rope_parameters"] = _ropes(config)


def _common(config: Json, values: Json, every: int) -> int:
    """Sets what both have; returns the number of layers."""
    layers = min(size_of(config.get("num_hidden_layers")), MAX_LAYERS)
    pattern = values.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        pattern = [(index + 1) % every != 0 for index in range(layers)]
    config["layer_types"] = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
    names = {
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    }
    config |= {name: values[key] for key, name in names.items() if key in values}
    config["vocab_size_per_layer_input"] = config["vocab_size"]
    return layers


def _has_no_values(values: Json, layer: int) -> bool:
    names = [f"blk.{layer}.attn_{part}.weight" for part in "kv"]
    return [name in values["tensors"] for name in names] == [True, False]


def _is_double(config: Json, values: Json) -> bool:
    """Returns whether layers that read others' keys have feed-forwards twice as wide."""
    widths = values.get(_WIDTHS)
    if widths is None:
        return False
    shared = config.get("num_kv_shared_layers", 0)
    own = len(widths) - shared if isinstance(shared, int) else 0
    if widths != [widths[0]] * own + [2 * widths[0]] * (len(widths) - own):
        raise CheckpointError("GGUF", f"feed_forward_length is {widths}; the last {shared} may be twice as wide alone")
    config["intermediate_size"] = widths[0]
    return True


def _ropes(config: Json) -> Json:
    """Files divide the frequencies of full layers by factors, of which those that are not 1 stand for no rotation."""
    factors = config.pop("rope_scaling", {}).get("short_factor", [1.0])
    rotated = [factor for factor in factors if factor == 1.0]
    if not rotated or factors != [*rotated, *(each for each in factors if each > _NEVER)]:
        raise CheckpointError("GGUF", "rope_freqs.weight has other factors than 1 and, behind them, 1e30")
    full = {"rope_type": "proportional", "rope_theta": config.pop("rope_theta", 1_000_000.0)}
    return {
        "full_attention": full | {"partial_rotary_factor": len(rotated) / len(factors)},
        "sliding_attention": {"rope_theta": config.pop("rope_local_base_freq", 10_000.0)},
    }
