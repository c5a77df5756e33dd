"""The dialects of models with recurrent mixers.

The sizes of state space mixers have Bamba's names here (`mamba_d_state`, `mamba_expand` and so on).
"""

from collections.abc import Mapping
from typing import Any, Final

from appliance.checkpoint.dialect import MAX_LAYERS, Dialect, Json, size_of
from appliance.checkpoint.errors import CheckpointError

_NO_LIMIT: Final = 1 << 20  # of a model without positions that states none; llama.cpp writes the same number
_PATTERN: Final = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_LINEAR: Final = ("full_attention", "linear_attention")


def _num_layers(values: Json) -> int:
    return min(size_of(values.get("num_hidden_layers", values.get("n_layer"))), MAX_LAYERS)


def _expanded(values: Json) -> Json:
    """The width of a block without a feed-forward is that of its mixer."""
    return {"intermediate_size": size_of(values.get("expand", 2)) * size_of(values.get("hidden_size"))}


def _every(values: Json, key: str, default: int) -> int:
    return size_of(values.get(key, default)) or 1


def _qwen3_next(values: Json) -> Json:
    """Every n-th layer, counted from 1, has attention."""
    step = _every(values, "full_attention_interval", 4)
    return {"layer_types": [_LINEAR[(index + 1) % step != 0] for index in range(_num_layers(values))]}


def _jamba(values: Json) -> Json:
    step, first = _every(values, "attn_layer_period", 8), values.get("attn_layer_offset", 4)
    return {"layer_types": [_LINEAR[index % step != first] for index in range(_num_layers(values))]}


def _indices(values: Json, key: str) -> list[Any] | None:
    """Returns the numbers of layers that a config lists, or None. Raises CheckpointError for what is no list."""
    found = values.get(key)
    if found is not None and not isinstance(found, list):
        raise CheckpointError("config.json", f"{key} is {found!r}; a list of layers is expected")
    return found


def _bamba(values: Json) -> Json:
    attends = _indices(values, "attn_layer_indices") or ()
    return {"layer_types": [_LINEAR[index not in attends] for index in range(_num_layers(values))]}


def _granite(values: Json) -> Json:
    """Layers rotate only where the config says so; every layer is recurrent where it does not say which are."""
    count = _num_layers(values)
    rotates = values.get("position_embedding_type") == "rope"
    return {"layer_types": ["linear_attention"] * count, "no_rope_layers": [int(rotates)] * count}


def _lfm2(values: Json) -> Json:
    attends = _indices(values, "full_attn_idxs")
    kinds = ("full_attention", "conv")
    return {
        "layer_types": [kinds[attends is not None and index not in attends] for index in range(_num_layers(values))]
    }


def _nemotron_h(values: Json) -> Json:
    """The layers may be a text of one letter each. Raises CheckpointError for another letter."""
    pattern = values.get("hybrid_override_pattern")
    kinds = values.get("layers_block_type")
    if kinds is None and isinstance(pattern, str):
        if unknown := set(pattern) - set(_PATTERN):
            known = ", ".join(_PATTERN)
            raise CheckpointError("config.json", f"hybrid_override_pattern has {min(unknown)!r}", f"known: {known}")
        kinds = [_PATTERN[letter] for letter in pattern]
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)} if isinstance(kinds, list) else {}


def _kimi_linear(values: Json) -> Json:
    """The sizes and the layers, counted from 1, of the delta rule may lie in a mapping of their own. Raises
    CheckpointError if it is none."""
    inner = values.get("linear_attn_config") or {}
    if not isinstance(inner, Mapping):
        raise CheckpointError("config.json", f"linear_attn_config is {inner!r}; a mapping is expected")
    names = {
        "linear_head_dim": "head_dim",
        "linear_num_heads": "num_heads",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }
    listed = _indices(inner, "full_attn_layers")
    attends = range(5, MAX_LAYERS, 4) if listed is None else listed
    kinds = [_LINEAR[index + 1 not in attends] for index in range(_num_layers(values))]
    return {"layer_types": kinds, **{key: inner.get(name) for key, name in names.items()}}


def _olmo_hybrid(values: Json) -> Json:
    kinds = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(_num_layers(values))]
    if kinds and "full_attention" not in kinds:
        kinds[-1] = "full_attention"
    return {"layer_types": kinds}


def _recurrent_gemma(values: Json) -> Json:
    """The kinds of layers are a list that is repeated. Raises CheckpointError for another kind, or for no list."""
    listed = values.get("block_types", ("recurrent", "recurrent", "attention"))
    kinds = {"recurrent": "linear_attention", "attention": "sliding_attention"}
    if not isinstance(listed, list | tuple) or not listed or not set(map(str, listed)) <= set(kinds):
        raise CheckpointError("config.json", f"block_types is {listed!r}", f"known: {', '.join(kinds)}")
    return {"layer_types": [kinds[listed[index % len(listed)]] for index in range(_num_layers(values))]}


def _zamba2(values: Json) -> Json:
    """Heads share out twice the hidden size, and a feed-forward is four times as wide as that unless it is stated."""
    width, heads = size_of(values.get("hidden_size")), size_of(values.get("num_attention_heads"))
    head_dim = {"head_dim": 2 * width // heads} if heads else {}
    return {**head_dim, **({"intermediate_size": 4 * width} if values.get("intermediate_size") is None else {})}


_MAMBA: Final = Dialect(
    names={
        "mamba_d_state": "state_size",
        "mamba_d_conv": "conv_kernel",
        "mamba_expand": "expand",
        "mamba_dt_rank": "time_step_rank",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_proj_bias": "use_bias",
    },
    defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": _NO_LIMIT},
    derived=_expanded,
    rotates="none",
    kinds=("linear_attention",),
)
_MAMBA2: Final = Dialect(
    names={
        **_MAMBA.names,
        "mamba_n_heads": "num_heads",
        "mamba_d_head": "head_dim",
        "mamba_n_groups": "n_groups",
        "mamba_hidden_act": "hidden_act",
    },
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": _NO_LIMIT,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
    },
    derived=_expanded,
    rotates="none",
    kinds=("linear_attention",),
)
_GATED_DELTA: Final = {"head_dim": 256, "attention_bias": False, "partial_rotary_factor": 0.25}
_LFM2: Final = Dialect(
    names={"rms_norm_eps": "norm_eps", "tie_word_embeddings": "tie_embedding"},
    defaults={
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 128_000,
    },
    derived=_lfm2,
    kinds=("full_attention", "conv"),
)

HYBRIDS: Final[Mapping[str, Dialect]] = {
    "bamba": Dialect(
        defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "max_position_embeddings": 262_144},
        derived=_bamba,
        kinds=_LINEAR,
    ),
    "falcon_h1": Dialect(
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "mamba_n_heads": 128, "mamba_d_ssm": 1024},
        kinds=("hybrid",),
    ),
    "falcon_mamba": _MAMBA,
    "granitemoehybrid": Dialect(
        defaults={"attention_multiplier": 1.0, "max_position_embeddings": 2048, "num_local_experts": 8},
        derived=_granite,
        kinds=_LINEAR,
    ),
    "jamba": Dialect(
        defaults={
            "max_position_embeddings": 262_144,
            "num_key_value_heads": 8,
            "num_experts": 16,
            "num_experts_per_tok": 2,
        },
        derived=_jamba,
        rotates="none",
        kinds=_LINEAR,
    ),
    "kimi_linear": Dialect(
        names={
            "num_experts_per_tok": "num_experts_per_token",
            "norm_topk_prob": "moe_renormalize",
            "n_group": "num_expert_group",
            "n_shared_experts": "num_shared_experts",
            "max_position_embeddings": "model_max_length",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "model_max_length": _NO_LIMIT,
            "num_experts": 256,
            "num_experts_per_token": 8,
            "num_shared_experts": 1,
            "routed_scaling_factor": 2.446,
        },
        derived=_kimi_linear,
        rotates="none",
        kinds=_LINEAR,
    ),
    "lfm2": Dialect(
        names={**_LFM2.names, "intermediate_size": "block_ff_dim"},
        defaults=_LFM2.defaults,
        derived=_lfm2,
        kinds=_LFM2.kinds,
    ),
    "lfm2_moe": Dialect(
        names=_LFM2.names,
        defaults={**_LFM2.defaults, "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4},
        derived=_lfm2,
        kinds=_LFM2.kinds,
    ),
    "mamba": _MAMBA,
    "mamba2": _MAMBA2,
    "nemotron_h": Dialect(
        names={
            "layer_types": "layers_block_type",
            "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "mlp_hidden_act",
            "mamba_d_state": "ssm_state_size",
            "mamba_d_conv": "conv_kernel",
            "mamba_n_heads": "mamba_num_heads",
            "mamba_d_head": "mamba_head_dim",
            "mamba_n_groups": "n_groups",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_proj_bias": "use_bias",
        },
        defaults={
            "layer_norm_epsilon": 1e-5,
            "mlp_hidden_act": "relu2",
            "head_dim": 128,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
        },
        derived=_nemotron_h,
        rotates="none",
        kinds=("full_attention", "linear_attention", "mlp", "moe"),
    ),
    "olmo_hybrid": Dialect(defaults={"max_position_embeddings": 65_536}, derived=_olmo_hybrid, kinds=_LINEAR),
    "qwen3_5_text": Dialect(defaults=_GATED_DELTA, derived=_qwen3_next, kinds=_LINEAR),
    "qwen3_5_moe_text": Dialect(
        defaults={**_GATED_DELTA, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512},
        derived=_qwen3_next,
        kinds=_LINEAR,
    ),
    "qwen3_next": Dialect(
        defaults={**_GATED_DELTA, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512},
        derived=_qwen3_next,
        kinds=_LINEAR,
    ),
    "recurrent_gemma": Dialect(
        names={"sliding_window": "attention_window_size", "final_logit_softcapping": "logits_soft_cap"},
        defaults={
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "attention_window_size": 2048,
            "logits_soft_cap": 30.0,
            "partial_rotary_factor": 0.5,
            "attention_out_bias": True,
            "max_position_embeddings": 8192,
        },
        derived=_recurrent_gemma,
        kinds=("sliding_attention", "linear_attention"),
    ),
    "zamba2": Dialect(
        names={
            "layer_types": "layers_block_type",
            "head_dim": "attention_head_dim",
            "mlp_bias": "add_bias_linear",
            "mamba_n_heads": "n_mamba_heads",
            "mamba_n_groups": "mamba_ngroups",
            "mamba_proj_bias": "add_bias_linear",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            "mamba_d_state": 64,
            "n_mamba_heads": 8,
        },
        derived=_zamba2,
        kinds=("linear_attention", "hybrid"),
    ),
}
