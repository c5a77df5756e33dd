"""Translates GGUF metadata to a Hugging Face config: one table of keys, and additions of single families.

If GGUF leaves a value to llama.cpp's constants (Gemma's attention scale and window pattern), the constants of
llama.cpp's model loader are used, so that a file has the same meaning as there.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import StoredConventions
from appliance.checkpoint.gguf import GgufFile, GgufTensor, plain

# By stored name: the file of the set that holds the tensor, and its directory entry.
StoredTensors = dict[str, tuple[GgufFile, GgufTensor]]

ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "dots1": ("Dots1ForCausalLM", "dots1"),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe"),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"),
    "arcee": ("ArceeForCausalLM", "arcee"),
    "cohere2": ("Cohere2ForCausalLM", "cohere2"),
    "command-r": ("CohereForCausalLM", "cohere"),
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5"),
    "exaone4": ("Exaone4ForCausalLM", "exaone4"),
    "gemma": ("GemmaForCausalLM", "gemma"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "glm4": ("Glm4ForCausalLM", "glm4"),
    "granite": ("GraniteForCausalLM", "granite"),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "lfm2": ("Lfm2ForCausalLM", "lfm2"),
    "lfm2moe": ("Lfm2MoeForCausalLM", "lfm2_moe"),
    "mamba": ("MambaForCausalLM", "mamba"),
    "nemotron": ("NemotronForCausalLM", "nemotron"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
    "olmoe": ("OlmoeForCausalLM", "olmoe"),
    "minimax-m2": ("MiniMaxM2ForCausalLM", "minimax_m2"),
    "gptneox": ("GPTNeoXForCausalLM", "gpt_neox"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
    "phi2": ("PhiForCausalLM", "phi"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "gpt2": ("GPT2LMHeadModel", "gpt2"),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3"),
    "stablelm": ("StableLmForCausalLM", "stablelm"),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2"),
}
WITH_EXPERTS: Final = {"llama": ("MixtralForCausalLM", "mixtral")}  # what it is with experts
_MIXTURES: Final = (
    "llama", "qwen2moe", "qwen3moe", "dots1", "glm4moe", "ernie4_5-moe", "lfm2moe", "olmoe", "minimax-m2", "gpt-oss",
)  # fmt: skip
CONVENTIONS: Final = {
    "arcee": StoredConventions(interleaved_heads=True),
    "gemma": StoredConventions(norm_includes_one=True),
    "granite": StoredConventions(interleaved_heads=True),
    "llama": StoredConventions(interleaved_heads=True),
    "mamba": StoredConventions(negated_rates=True),
    "nemotron": StoredConventions(norm_includes_one=True),
    "smollm3": StoredConventions(interleaved_heads=True),
    "gemma2": StoredConventions(norm_includes_one=True),
    "gemma3": StoredConventions(norm_includes_one=True),
}
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
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "attention.scale",
    "rope.dimension_count",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
)
_KV_HEADS: Final = "attention.head_count_kv"
_HYBRIDS: Final = ("lfm2", "lfm2moe")  # a layer of these without KV heads has another mixer
# If a file has these, the computation differs in ways that no family here can express.
_REFUSED: Final = ("attention.kv_lora_rank", "attention.clamp_kqv", "attention.max_alibi_bias")
_SIGMOID: Final = 2  # llama.cpp's number of the gating function
_GEMMA2_27B_LAYERS: Final = 46
_GEMMA3_27B_LAYERS: Final = 62


def gguf_architecture(file: GgufFile) -> str:
    """Returns the file's architecture name. Raises CheckpointError if it is missing or not supported."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(file.path.name, f"GGUF architecture {name!r} is not in this version", f"known: {known}")
    return str(name)


def translate_config(file: GgufFile, tensors: StoredTensors) -> dict[str, Any]:
    """Returns the Hugging Face config equivalent to the metadata. `tensors` are those of all shards."""
    architecture = gguf_architecture(file)
    values = _architecture_values(file, architecture)
    has_experts = bool(values.get("expert_count"))
    class_name, model_type = (WITH_EXPERTS if has_experts else {}).get(architecture, ARCHITECTURES[architecture])
    config: dict[str, Any] = {"architectures": [class_name], "model_type": model_type}
    config |= {name: values[key] for key, name in _KEYS.items() if key in values}
    config["vocab_size"] = _vocab_size(file, tensors)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // max(1, config.get("num_attention_heads", 1))
    rotary = values.get("rope.dimension_count")
    if rotary is not None and head_dim and rotary != head_dim and model_type != "gpt2":
        config["partial_rotary_factor"] = rotary / head_dim
    config |= {"rope_scaling": scaling} if (scaling := _rope_scaling(values, tensors)) else {}
    if special := _SPECIAL.get(architecture):
        special(config, values)
    config["use_qk_norm"] = any(name.endswith("attn_q_norm.weight") for name in tensors)
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
            if architecture in _HYBRIDS and short == _KV_HEADS:
                values["attends"] = [heads != 0 for heads in value]
                different.discard(0)
            if len(different) != 1:
                raise CheckpointError(file.path.name, f"{key} differs between layers, which is not in this version")
            value = different.pop()
        values[short] = value
    for key in (*_KEYS, *_OTHER_NUMBERS):
        if key in values and not _is_sane_number(values[key]):
            raise CheckpointError(file.path.name, f"{prefix}{key} is {values[key]!r}; a number is expected")
    for key in _REFUSED if architecture in _MIXTURES else (*_REFUSED, "expert_count"):
        if values.get(key):
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
    return scaling


def _factors(tensors: StoredTensors, name: str) -> list[float] | None:
    if name not in tensors:
        return None
    file, tensor = tensors[name]
    if tensor.storage != "f32" or tensor.size_bytes > 4096:
        raise CheckpointError(file.path.name, f"{name} must be a short f32 vector, not {tensor.storage} {tensor.shape}")
    return [value for (value,) in struct.iter_unpack("<f", file.read(tensor))]


def _gemma2(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["query_pre_attn_scalar"] = _pre_attention_scalar(config, values, _GEMMA2_27B_LAYERS)
    config.setdefault("attn_logit_softcapping", 50.0)
    config.setdefault("final_logit_softcapping", 30.0)


def _gemma3(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["query_pre_attn_scalar"] = _pre_attention_scalar(config, values, _GEMMA3_27B_LAYERS)
    config.setdefault("rope_theta", 1_000_000.0)
    config.setdefault("rope_local_base_freq", 10_000.0)
    pattern = values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if sliding else "full_attention" for sliding in pattern]
    elif pattern:
        config["sliding_window_pattern"] = pattern


def _granite(config: dict[str, Any], values: dict[str, Any]) -> None:
    """The file's logit scale divides, as transformers' logits_scaling does. A scale of zero stands for none."""
    _no_window(config, values)
    scales = {"logits_scaling": config.pop("logit_scale", 0), "attention_multiplier": values.get("attention.scale", 0)}
    config |= {key: scale for key, scale in scales.items() if scale}
    if "attention_multiplier" not in config:
        config["attention_multiplier"] = (config["hidden_size"] / config["num_attention_heads"]) ** -0.5


def _exaone4(config: dict[str, Any], values: dict[str, Any]) -> None:
    """Files without a window are of the model in which all layers see everything."""
    _no_window(config, values)
    config["sliding_window_pattern"] = 4


def _stablelm(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["use_parallel_residual"] = bool(values.get("use_parallel_residual", False))


def _gpt_oss(config: dict[str, Any], values: dict[str, Any]) -> None:
    """Files leave out how yarn bounds its ramp, which this family does not round."""
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False


def _gpt_neox(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["use_parallel_residual"] = bool(values.get("use_parallel_residual", True))


def _gpt2(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["activation_function"] = "gelu_new"


def _qwen2(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["use_sliding_window"] = False  # llama.cpp always gives Qwen full attention


def _no_window(config: dict[str, Any], values: dict[str, Any]) -> None:
    config.setdefault("sliding_window", None)


def _qwen2moe(config: dict[str, Any], values: dict[str, Any]) -> None:
    """Older files leave out the experts' width: llama.cpp shares the feed-forward's out among those that are chosen."""
    config["use_sliding_window"] = False
    width, chosen = config.get("intermediate_size", 0), config.get("num_experts_per_tok") or 1
    config.setdefault("moe_intermediate_size", width // chosen)
    config.setdefault("shared_expert_intermediate_size", width)
    config["norm_topk_prob"] = False


def _qwen3moe(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["use_sliding_window"] = False
    config["norm_topk_prob"] = True


def _deepseek_routing(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["norm_topk_prob"] = bool(values.get("expert_weights_norm", False))
    config["sliding_window"] = None
    if not config.get("routed_scaling_factor"):
        config.pop("routed_scaling_factor", None)
    _check_sigmoid(values)


def _glm4moe(config: dict[str, Any], values: dict[str, Any]) -> None:
    """Blocks that draft tokens are counted among the layers. Head norms are there or not."""
    _deepseek_routing(config, values)
    config["num_hidden_layers"] = config.get("num_hidden_layers", 0) - config.get("num_nextn_predict_layers", 0)


def _ernie(config: dict[str, Any], values: dict[str, Any]) -> None:
    config["moe_num_shared_experts"] = config.pop("n_shared_experts", 0)
    config["moe_layer_start_index"] = config.pop("first_k_dense_replace", 0)
    config["moe_layer_interval"] = values.get("interleave_moe_layer_step", 1)


def _lfm2(config: dict[str, Any], values: dict[str, Any]) -> None:
    """A file has the width of the feed-forward as it is."""
    count = config.get("num_hidden_layers", 0)
    attends = values.get("attends") or [True] * count
    config["layer_types"] = ["full_attention" if has_heads else "conv" for has_heads in attends]
    config["block_auto_adjust_ff_dim"] = False
    if "shortconv.l_cache" in values:
        config["conv_L_cache"] = values["shortconv.l_cache"]


def _lfm2moe(config: dict[str, Any], values: dict[str, Any]) -> None:
    _lfm2(config, values)
    config["num_dense_layers"] = config.pop("first_k_dense_replace", 0)
    config["norm_topk_prob"] = True
    _check_sigmoid(values)


def _mamba(config: dict[str, Any], values: dict[str, Any]) -> None:
    """A file whose time step, b and c are normed is of Falcon Mamba. Files state no heads and no feed-forward."""
    if values.get("ssm.dt_b_c_rms"):
        config |= {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
    names = {"conv_kernel": "conv_kernel", "state_size": "state_size", "time_step_rank": "time_step_rank"}
    config |= {name: values[f"ssm.{key}"] for key, name in names.items() if f"ssm.{key}" in values}
    width, hidden = values.get("ssm.inner_size", 0), config.get("hidden_size", 0)
    if not hidden or width % hidden:
        raise CheckpointError("GGUF", f"ssm.inner_size is {width}; a multiple of {hidden} is expected")
    config |= {"expand": width // hidden, "intermediate_size": width}


def _check_sigmoid(values: dict[str, Any]) -> None:
    if values.get("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise CheckpointError("GGUF", f"expert_gating_func is {values['expert_gating_func']}; {_SIGMOID} is expected")


def _pre_attention_scalar(config: dict[str, Any], values: dict[str, Any], layers_27b: int) -> float:
    scale = values.get("attention.scale")
    if scale:  # it is the factor of the scores; transformers has x where the factor is x ** -1/2
        return float(scale) ** -2
    if config.get("num_hidden_layers") == layers_27b:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config.get("head_dim", 256))


_SPECIAL: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], None]]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
    "gptneox": _gpt_neox,
    "gpt-oss": _gpt_oss,
    "arcee": _no_window,
    "exaone4": _exaone4,
    "granite": _granite,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2moe,
    "mamba": _mamba,
    "stablelm": _stablelm,
    "starcoder2": _no_window,
    "llama": _no_window,
    "phi3": _no_window,
    "qwen2": _qwen2,
    "qwen3": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "dots1": _deepseek_routing,
    "glm4moe": _glm4moe,
    "ernie4_5-moe": _ernie,
}


def _token_ids(file: GgufFile) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {key: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: value for key, value in found.items() if value is not None}
