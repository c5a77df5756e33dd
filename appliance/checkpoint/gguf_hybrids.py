"""What the metadata of GGUF architectures with recurrent layers means beyond the common keys."""

from collections.abc import Callable
from typing import Any, Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf_architectures import BAMBA, FALCON_MAMBA, named

Json = dict[str, Any]
Change = Callable[[Json, Json], None]  # of a config, by the metadata without the prefix

_SIGMOID: Final = 2  # llama.cpp's number of the gating function


def check_sigmoid(values: Json) -> None:
    """Raises CheckpointError if the file's experts are not chosen by sigmoids."""
    if values.get("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise CheckpointError("GGUF", f"expert_gating_func is {values['expert_gating_func']}; {_SIGMOID} is expected")


def _lfm2(config: Json, values: Json) -> None:
    """A file has the width of the feed-forward as it is."""
    count = config.get("num_hidden_layers", 0)
    attends = values.get("attends") or [True] * count
    config["layer_types"] = ["full_attention" if has_heads else "conv" for has_heads in attends]
    config["block_auto_adjust_ff_dim"] = False
    if "shortconv.l_cache" in values:
        config["conv_L_cache"] = values["shortconv.l_cache"]


def _lfm2moe(config: Json, values: Json) -> None:
    _lfm2(config, values)
    config["num_dense_layers"] = config.pop("first_k_dense_replace", 0)
    config["norm_topk_prob"] = True
    check_sigmoid(values)


def _mamba(config: Json, values: Json) -> None:
    """A file whose time step, b and c are normed is of Falcon Mamba. Files state no heads and no feed-forward."""
    if values.get("ssm.dt_b_c_rms"):
        config |= named(FALCON_MAMBA)
    names = {"conv_kernel": "conv_kernel", "state_size": "state_size", "time_step_rank": "time_step_rank"}
    config |= {name: values[f"ssm.{key}"] for key, name in names.items() if f"ssm.{key}" in values}
    width, hidden = values.get("ssm.inner_size", 0), config.get("hidden_size", 0)
    if not hidden or width % hidden:
        raise CheckpointError("GGUF", f"ssm.inner_size is {width}; a multiple of {hidden} is expected")
    config |= {"expand": width // hidden, "intermediate_size": width}


def _mamba2(config: Json, values: Json) -> None:
    config |= {"use_bias": _has(values, "ssm_in.bias"), "use_conv_bias": _has(values, "ssm_conv1d.bias")}
    names = {"mamba_n_heads": "num_heads", "mamba_d_head": "head_dim", "mamba_n_groups": "n_groups"}
    config |= {names.get(key, key): size for key, size in _state_space(config, values).items()}
    config["intermediate_size"] = values["ssm.inner_size"]


def _state_space(config: Json, values: Json) -> Json:
    """Returns the sizes of Mamba 2 by Bamba's names. Raises CheckpointError for a width that is no whole heads."""
    width, heads = values.get("ssm.inner_size", 0), values.get("ssm.time_step_rank", 0)
    if not heads or width % heads:
        raise CheckpointError("GGUF", f"ssm.inner_size is {width}; a multiple of {heads} heads is expected")
    keys = {"mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size", "mamba_n_groups": "ssm.group_count"}
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": width // heads,
        "mamba_expand": width // max(1, config.get("hidden_size", 0)),
        "mamba_conv_bias": _has(values, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(values, "ssm_in.bias"),
        **{name: values[key] for name, key in keys.items() if key in values},
    }


def _has(values: Json, ending: str) -> bool:
    return any(name.endswith(f".{ending}") for name in values["tensors"])


_KINDS: Final = ("full_attention", "linear_attention")


def _kinds(config: Json, values: Json) -> list[str]:
    """Returns which layers attend."""
    attends = values.get("attends") or [True] * config.get("num_hidden_layers", 0)
    return [_KINDS[not has_heads] for has_heads in attends]


def _granitehybrid(config: Json, values: Json) -> None:
    """Bamba has none of Granite's multipliers. A dense model's feed-forward is the shared block. A scale of zero stands
    for none."""
    config |= {"layer_types": _kinds(config, values), **_state_space(config, values)}
    if not any(key in values for key in ("attention.scale", "embedding_scale", "residual_scale")):
        config |= {"partial_rotary_factor": 1.0, **config, **named(BAMBA)}
        return
    rotates = values.get("rope.scaling.finetuned", True)
    shared = config.pop("shared_expert_intermediate_size", None) or config.get("intermediate_size")
    config |= {"position_embedding_type": "rope" if rotates else "nope", "shared_intermediate_size": shared}
    config["num_local_experts"] = config.get("num_local_experts", 0)
    scales = {"logits_scaling": config.pop("logit_scale", 0), "attention_multiplier": values.get("attention.scale", 0)}
    config |= {key: scale for key, scale in scales.items() if scale}


def _jamba(config: Json, values: Json) -> None:
    """Which layers have experts is seen from their tensors."""
    sizes = _rank_of_time_step(values)
    layers = range(config.get("num_hidden_layers", 0))
    sparse = [layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" in values["tensors"]]
    if sparse:
        config["expert_layer_offset"] = sparse[0]
        config["expert_layer_period"] = sparse[1] - sparse[0] if len(sparse) > 1 else len(layers)
    config |= {
        "layer_types": _kinds(config, values),
        "num_local_experts": config.get("num_local_experts") or 1,
        **sizes,
    }
    config["mamba_expand"] = values.get("ssm.inner_size", 0) // max(1, config.get("hidden_size", 0))


def _rank_of_time_step(values: Json) -> Json:
    """Returns the sizes of Mamba 1 by Bamba's names."""
    keys = {
        "mamba_d_conv": "ssm.conv_kernel",
        "mamba_d_state": "ssm.state_size",
        "mamba_dt_rank": "ssm.time_step_rank",
    }
    return {
        "mamba_conv_bias": _has(values, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(values, "ssm_in.bias"),
        **{name: values[key] for name, key in keys.items() if key in values},
    }


def _nemotron_h(config: Json, values: Json) -> None:
    """What a layer is, is seen from its tensors. Blocks that draft tokens are counted among the layers."""
    sizes = _state_space(config, values)
    names = {"mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim", "mamba_n_groups": "n_groups"}
    names |= {"mamba_d_state": "ssm_state_size", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"}
    names |= {"mamba_proj_bias": "use_bias"}
    count = config.get("num_hidden_layers", 0) - config.get("num_nextn_predict_layers", 0)
    config |= {"num_hidden_layers": count, **{names.get(key, key): size for key, size in sizes.items()}}
    config["layers_block_type"] = [_block(values, layer) for layer in range(count)]
    if shared := config.pop("shared_expert_intermediate_size", None):
        config["moe_shared_expert_intermediate_size"] = shared
    if "moe_latent_size" in values:
        config["moe_latent_size"] = values["moe_latent_size"]
    config["norm_topk_prob"] = bool(values.get("expert_weights_norm", False))


def _block(values: Json, layer: int) -> str:
    kinds = {"ssm_in": "linear_attention", "attn_q": "full_attention", "ffn_gate_inp": "moe"}
    found = (kind for name, kind in kinds.items() if f"blk.{layer}.{name}.weight" in values["tensors"])
    return next(found, "mlp")


def _falcon_h1(config: Json, values: Json) -> None:
    """Weights of a file include the multipliers."""
    config |= _state_space(config, values)
    config |= {"mamba_d_ssm": values["ssm.inner_size"], "mamba_rms_norm": _has(values, "ssm_norm.weight")}
    config["mamba_norm_before_gate"] = False


def _qwen3next(config: Json, values: Json) -> None:
    """The state of a head is as wide as its key. Which layers have no experts is seen from their tensors."""
    width, heads = values.get("ssm.inner_size", 0), values.get("ssm.time_step_rank", 0)
    if not heads or width % heads:
        raise CheckpointError("GGUF", f"ssm.inner_size is {width}; a multiple of {heads} heads is expected")
    keys = {
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "linear_key_head_dim": "ssm.state_size",
        "linear_num_key_heads": "ssm.group_count",
        "full_attention_interval": "full_attention_interval",
    }
    config |= {name: values[key] for name, key in keys.items() if key in values}
    config |= {"linear_num_value_heads": heads, "linear_value_head_dim": width // heads, "norm_topk_prob": True}
    config["num_hidden_layers"] = config.get("num_hidden_layers", 0) - config.get("num_nextn_predict_layers", 0)
    layers = range(config["num_hidden_layers"])
    recurrent = values.get("attention.recurrent_layers")
    if isinstance(recurrent, list) and len(recurrent) >= len(layers):
        config["layer_types"] = [_KINDS[bool(recurrent[layer])] for layer in layers]
    dense = [layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" not in values["tensors"]]
    config["mlp_only_layers"] = dense


HYBRID_CHANGES: Final[dict[str, Change]] = {
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granitehybrid,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2moe,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "qwen3next": _qwen3next,
    "qwen35": _qwen3next,
    "qwen35moe": _qwen3next,
}
