"""What the metadata of single GGUF architectures means beyond the common keys."""

from typing import Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf_architectures import DEEPSEEK_V2, GRANITE_SHARED, MIXTRAL, OLMO3, named
from appliance.checkpoint.gguf_encoders import ENCODER_CHANGES
from appliance.checkpoint.gguf_gemmas import change_gemma3n, change_gemma4
from appliance.checkpoint.gguf_hybrids import HYBRID_CHANGES, Change, Json, check_sigmoid

_GEMMA2_27B_LAYERS: Final = 46
_GEMMA3_27B_LAYERS: Final = 62
_SOFTMAX: Final = 1  # llama.cpp's numbers of the gating functions
_SIGMOID: Final = 2
_GLM_4_7_FLASH: Final = ((47, 48), 154_880)  # layers, with and without those that draft, and tokens
_BAICHUAN_13B_LAYERS: Final = 40
_LLAMA4_MAVERICK_EXPERTS: Final = 128
_MIMO_HEADS: Final = ("num_key_value_heads", "swa_num_key_value_heads")  # of full layers, and of windowed ones


def _gemma2(config: Json, values: Json) -> None:
    config["query_pre_attn_scalar"] = _pre_attention_scalar(config, values, _GEMMA2_27B_LAYERS)
    config.setdefault("attn_logit_softcapping", 50.0)
    config.setdefault("final_logit_softcapping", 30.0)


def _gemma3(config: Json, values: Json) -> None:
    config["query_pre_attn_scalar"] = _pre_attention_scalar(config, values, _GEMMA3_27B_LAYERS)
    config.setdefault("rope_theta", 1_000_000.0)
    config.setdefault("rope_local_base_freq", 10_000.0)
    pattern = values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if sliding else "full_attention" for sliding in pattern]
    elif pattern:
        config["sliding_window_pattern"] = pattern


def _gemma_embedding(config: Json, values: Json) -> None:
    """Tokens see those after them too; the stated window is that of both sides."""
    _gemma3(config, values)
    config["use_bidirectional_attention"] = True


def _granite(config: Json, values: Json) -> None:
    """The file's logit scale divides, as transformers' logits_scaling does. A scale of zero stands for none."""
    _no_window(config, values)
    scales = {"logits_scaling": config.pop("logit_scale", 0), "attention_multiplier": values.get("attention.scale", 0)}
    config |= {key: scale for key, scale in scales.items() if scale}
    if "attention_multiplier" not in config:
        config["attention_multiplier"] = (config["hidden_size"] / config["num_attention_heads"]) ** -0.5


def _exaone4(config: Json, values: Json) -> None:
    """Files without a window are of the model in which all layers see everything."""
    _no_window(config, values)
    config["sliding_window_pattern"] = 4


def _stablelm(config: Json, values: Json) -> None:
    config["use_parallel_residual"] = bool(values.get("use_parallel_residual", False))


def _gpt_oss(config: Json, values: Json) -> None:
    """Files leave out how yarn bounds its ramp, which this family does not round."""
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False


def _gpt_neox(config: Json, values: Json) -> None:
    config["use_parallel_residual"] = bool(values.get("use_parallel_residual", True))


def _gpt2(config: Json, values: Json) -> None:
    config["activation_function"] = "gelu_new"


def _qwen2(config: Json, values: Json) -> None:
    config["use_sliding_window"] = False  # llama.cpp always gives Qwen full attention


def _no_window(config: Json, values: Json) -> None:
    config.setdefault("sliding_window", None)


def _qwen2moe(config: Json, values: Json) -> None:
    """Older files leave out the experts' width: llama.cpp shares the feed-forward's out among those that are chosen."""
    config["use_sliding_window"] = False
    width, chosen = config.get("intermediate_size", 0), config.get("num_experts_per_tok") or 1
    config.setdefault("moe_intermediate_size", width // chosen)
    config.setdefault("shared_expert_intermediate_size", width)
    config["norm_topk_prob"] = False


def _qwen3moe(config: Json, values: Json) -> None:
    config["use_sliding_window"] = False
    config["norm_topk_prob"] = True


def _deepseek_routing(config: Json, values: Json) -> None:
    config["norm_topk_prob"] = bool(values.get("expert_weights_norm", False))
    config["sliding_window"] = None
    if not config.get("routed_scaling_factor"):
        config.pop("routed_scaling_factor", None)
    check_sigmoid(values)


def _glm4moe(config: Json, values: Json) -> None:
    """Blocks that draft tokens are counted among the layers. Head norms are there or not."""
    _deepseek_routing(config, values)
    config["num_hidden_layers"] = config.get("num_hidden_layers", 0) - config.get("num_nextn_predict_layers", 0)


def _ernie(config: Json, values: Json) -> None:
    config["moe_num_shared_experts"] = config.pop("n_shared_experts", 0)
    config["moe_layer_start_index"] = config.pop("first_k_dense_replace", 0)
    config["moe_layer_interval"] = values.get("interleave_moe_layer_step", 1)


def _pre_attention_scalar(config: Json, values: Json, layers_27b: int) -> float:
    scale = values.get("attention.scale")
    if scale:  # it is the factor of the scores; transformers has x where the factor is x ** -1/2
        return float(scale) ** -2
    if config.get("num_hidden_layers") == layers_27b:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config.get("head_dim", 256))


def _llama(config: Json, values: Json) -> None:
    _no_window(config, values)
    if values.get("expert_count"):
        config |= named(MIXTRAL)


def _deepseek2(config: Json, values: Json) -> None:
    """Files that do not say how experts are scored are of V2, by softmax, or of GLM 4.7 Flash, by sigmoids."""
    _latent(config, values)
    layers, tokens = _GLM_4_7_FLASH
    is_flash = config.get("num_hidden_layers") in layers and config["vocab_size"] == tokens
    scoring = values.get("expert_gating_func") or (_SIGMOID if is_flash else _SOFTMAX)
    config["num_hidden_layers"] = config.get("num_hidden_layers", 0) - config.get("num_nextn_predict_layers", 0)
    _deepseek_routing(config, {**values, "expert_gating_func": _SIGMOID if scoring == _SOFTMAX else scoring})
    if scoring == _SOFTMAX:
        has_groups = config.get("n_group", 1) > 1
        config |= {"topk_method": "group_limited_greedy" if has_groups else "greedy", **named(DEEPSEEK_V2)}
    weight, scaling = values.get("rope.scaling.yarn_log_multiplier"), config.get("rope_scaling", {})
    if weight and scaling.get("rope_type") == "yarn":  # files have a tenth of it
        scaling |= {"mscale": 10.0 * weight, "mscale_all_dim": 10.0 * weight}


def _latent(config: Json, values: Json) -> None:
    """Translates the sizes of latent attention. Files for its absorbed form have the widths of the expanded one under
    names of their own. Raises CheckpointError for sizes that do not go together."""
    rotated = values.get("rope.dimension_count") or 0
    width = values.get("attention.key_length_mla") or values.get("attention.key_length") or 0
    if not 0 < rotated < width:
        raise CheckpointError("GGUF", f"{rotated} columns of a key of {width} are to rotate")
    config.pop("partial_rotary_factor", None)
    config |= {
        "head_dim": rotated,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": width - rotated,
        "num_key_value_heads": config.get("num_attention_heads"),
    }
    if value_dim := values.get("attention.value_length_mla") or values.get("attention.value_length"):
        config["v_head_dim"] = value_dim
    names = ("kv_lora_rank", "q_lora_rank")
    config |= {name: values[f"attention.{name}"] for name in names if values.get(f"attention.{name}")}


def _falcon(config: Json, values: Json) -> None:
    """Queries, keys and values lie one after the other. The larger models have a norm of each block."""
    has_two = any(name.endswith("attn_norm_2.weight") for name in values["tensors"])
    config |= {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2 if has_two else 1}
    config["num_kv_heads"] = config.get("num_key_value_heads")


def _mpt(config: Json, values: Json) -> None:
    exponent = values.get("attention.max_alibi_bias")
    config["attn_config"] = {"alibi_bias_max": exponent} if exponent else {"alibi": False}


def _baichuan(config: Json, values: Json) -> None:
    """The larger model has no positions, which llama.cpp knows by the number of its layers."""
    if config.get("num_hidden_layers") == _BAICHUAN_13B_LAYERS:
        config["model_max_length"] = config.pop("max_position_embeddings", None)


def _minicpm(config: Json, values: Json) -> None:
    """The logits are divided by the file's logit scale. The family has its defaults for scales that are left out."""
    if scale := config.pop("embedding_multiplier", None):
        config["scale_emb"] = scale
    if scale := config.pop("residual_multiplier", None):
        config["scale_depth"] = scale * config.get("num_hidden_layers", 1) ** 0.5
    if scale := config.pop("logit_scale", None):
        config["dim_model_base"] = config["hidden_size"] / scale


def _granitemoe(config: Json, values: Json) -> None:
    _granite(config, values)
    shared = config.pop("shared_expert_intermediate_size", None)
    if shared:
        kinds = ["full_attention"] * config.get("num_hidden_layers", 0)
        config |= {"shared_intermediate_size": shared, "layer_types": kinds, "position_embedding_type": "rope"}
        config |= named(GRANITE_SHARED)


def _llama4(config: Json, values: Json) -> None:
    """Chunks, positions and temperatures are llama.cpp's constants; a window of zero says that there are no chunks."""
    has_chunks = config.pop("sliding_window", None) != 0
    config["intermediate_size_mlp"] = config.get("intermediate_size")
    config["intermediate_size"] = config.pop("moe_intermediate_size", config.get("intermediate_size"))
    config["use_qk_norm"] = values.get("expert_count") != _LLAMA4_MAVERICK_EXPERTS
    config["interleave_moe_layer_step"] = values.get("interleave_moe_layer_step", 1)
    if not has_chunks:
        count = config.get("num_hidden_layers", 0)
        config |= {"layer_types": ["full_attention"] * count, "no_rope_layers": [1] * count}


def _afmoe(config: Json, values: Json) -> None:
    check_sigmoid(values)
    config |= {"num_dense_layers": config.pop("first_k_dense_replace", 0), "mup_enabled": True}
    config |= {"num_shared_experts": config.pop("n_shared_experts", 0), "num_experts": config.pop("num_local_experts")}
    config["route_scale"] = config.pop("routed_scaling_factor", None) or 1.0


def _hunyuan_moe(config: Json, values: Json) -> None:
    """The shared block is as wide as the metadata says, which is the width of a dense one."""
    if shared := config.pop("shared_expert_intermediate_size", None):
        config["intermediate_size"] = shared


def _chatglm(config: Json, values: Json) -> None:
    """Older files have queries, keys and values as one tensor, with or without a bias."""
    config["head_dim"] = config.get("hidden_size", 0) // max(config.get("num_attention_heads", 1), 1)
    if any(name.endswith("attn_qkv.weight") for name in values["tensors"]):
        biased = any(name.endswith("attn_qkv.bias") for name in values["tensors"])
        config |= {"attention_bias": biased, "attention_out_bias": False}


def _kimi_linear(config: Json, values: Json) -> None:
    """Layers without KV heads have the delta rule, in as many heads as attention. Files leave out groups of experts."""
    check_sigmoid(values)
    _latent(config, values)
    attends = values.get("attends") or [True] * config.get("num_hidden_layers", 0)
    config["linear_attn_config"] = {
        "head_dim": values.get("kda.head_dim"),
        "num_heads": config.get("num_attention_heads"),
        "short_conv_kernel_size": values.get("ssm.conv_kernel"),
        "full_attn_layers": [layer + 1 for layer, has_heads in enumerate(attends) if has_heads],
    }
    config["num_experts"] = config.pop("num_local_experts", 0)
    if "n_group" not in config:
        config |= {"n_group": 1, "topk_group": 1}


def _mimo2(config: Json, values: Json) -> None:
    """Which layers have windows, and which have experts, is told by layer. Layers that draft tokens are counted too."""
    check_sigmoid(values)
    layers = config.get("num_hidden_layers", 0) - config.pop("num_nextn_predict_layers", 0)
    pattern = values.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list) or len(pattern) < layers:
        raise CheckpointError("GGUF", f"attention.sliding_window_pattern must list {layers} layers")
    windows = [int(bool(windowed)) for windowed in pattern[:layers]]
    heads = values.get("attention.head_count_kv.layers") or [config.get("num_key_value_heads")] * layers
    by_kind = dict(zip(windows, heads, strict=False))
    config |= {"num_hidden_layers": layers, "hybrid_layer_pattern": windows}
    config |= {key: by_kind[kind] for kind, key in enumerate(_MIMO_HEADS) if kind in by_kind}
    sparse = (f"blk.{layer}.ffn_gate_inp.weight" in values["tensors"] for layer in range(layers))
    config["moe_layer_freq"] = [int(has_experts) for has_experts in sparse]
    names = {"attention.value_length": "v_head_dim", "attention.value_scale": "attention_value_scale"}
    config |= {"attention_value_scale": 1.0, **{name: values[key] for key, name in names.items() if key in values}}
    config["swa_rope_theta"] = config.pop("rope_local_base_freq", config.get("rope_theta"))
    config["n_routed_experts"] = config.pop("num_local_experts", 0)


def _mistral3(config: Json, values: Json) -> None:
    """Scores have no factor for a longer context, as yarn's two magnitudes are one; queries are warmer beyond it."""
    _no_window(config, values)
    scaling = config.get("rope_scaling", {})
    if scaling.get("rope_type") != "yarn":
        return
    weight, beta = values.get("rope.scaling.yarn_log_multiplier"), values.get("attention.temperature_scale")
    scaling |= {"mscale": 1.0, "mscale_all_dim": weight} if weight else {}
    scaling |= {"llama_4_scaling_beta": beta} if beta else {}


def _olmo2(config: Json, values: Json) -> None:
    """Files with windows are of OLMo 3, whose scaling of the rotation is that of full layers alone."""
    if not config.get("sliding_window"):
        _no_window(config, values)
        return
    config |= named(OLMO3)
    pattern = values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
    theta = config.pop("rope_theta", 10_000.0)
    local = config.pop("rope_local_base_freq", theta)
    full = {"rope_theta": theta, **config.pop("rope_scaling", {"rope_type": "default"})}
    windowed = {"rope_type": "default", "rope_theta": local}
    config["rope_parameters"] = {"full_attention": full, "sliding_attention": windowed}


def _phimoe(config: Json, values: Json) -> None:
    config["sliding_window"] = None
    config["lm_head_bias"] = "output.bias" in values["tensors"]


CHANGES: Final[dict[str, Change]] = {
    **HYBRID_CHANGES,
    **ENCODER_CHANGES,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma-embedding": _gemma_embedding,
    "gemma3n": change_gemma3n,
    "gemma4": change_gemma4,
    "chatglm": _chatglm,
    "internlm2": _no_window,
    "kimi-linear": _kimi_linear,
    "mimo2": _mimo2,
    "mistral3": _mistral3,
    "olmo2": _olmo2,
    "phimoe": _phimoe,
    "gpt2": _gpt2,
    "gptneox": _gpt_neox,
    "gpt-oss": _gpt_oss,
    "arcee": _no_window,
    "exaone4": _exaone4,
    "granite": _granite,
    "stablelm": _stablelm,
    "starcoder2": _no_window,
    "afmoe": _afmoe,
    "baichuan": _baichuan,
    "deepseek2": _deepseek2,
    "falcon": _falcon,
    "granitemoe": _granitemoe,
    "hunyuan-moe": _hunyuan_moe,
    "llama": _llama,
    "llama4": _llama4,
    "minicpm": _minicpm,
    "minicpm3": _latent,
    "mpt": _mpt,
    "phi3": _no_window,
    "qwen2": _qwen2,
    "qwen3": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "dots1": _deepseek_routing,
    "glm4moe": _glm4moe,
    "ernie4_5-moe": _ernie,
}
