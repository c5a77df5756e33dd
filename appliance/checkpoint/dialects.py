"""How the configs of single model types differ: other names, defaults that are left out, and values that follow.

Only what configs on the hub leave out because the transformers class has it as a default is a default here.
"""

from collections.abc import Mapping
from typing import Final

from appliance.checkpoint.derived_values import chatglm, mimo
from appliance.checkpoint.dialect import Dialect, Json, size_of
from appliance.checkpoint.encoder_dialects import ENCODERS
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gemma_dialects import GEMMAS
from appliance.checkpoint.hybrid_dialects import HYBRIDS


def _wide(values: Json) -> Json:
    """A feed-forward four times as wide as the residual stream."""
    hidden = next((values[name] for name in ("hidden_size", "n_embd", "n_embed", "d_model") if name in values), None)
    return {"intermediate_size": 4 * size} if (size := size_of(hidden)) else {}


def _falcon(values: Json) -> Json:
    heads = values.get("num_attention_heads")
    if values.get("new_decoder_architecture"):
        num_kv_heads = values.get("num_kv_heads") or heads
    else:
        num_kv_heads = 1 if values.get("multi_query", True) else heads
    return {**_wide(values), "num_key_value_heads": num_kv_heads}


def _gpt_bigcode(values: Json) -> Json:
    return {**_wide(values), "num_key_value_heads": 1} if values.get("multi_query", True) else _wide(values)


def _rotary_dim(values: Json) -> Json:
    """GPT-J and MiniMax state how many columns of a head rotate. Raises CheckpointError for any other value."""
    stated = values.get("rotary_dim")
    if stated is None:
        return {}
    rotated, head_dim, width, heads = (
        size_of(values.get(key)) for key in ("rotary_dim", "head_dim", "n_embd", "n_head")
    )
    if not rotated:
        raise CheckpointError("config.json", f"rotary_dim is {stated!r}; a positive whole number is expected")
    head_dim = head_dim or (width // heads if heads else 0)
    return {"partial_rotary_factor": rotated / head_dim} if head_dim else {}


def _gptj(values: Json) -> Json:
    return {**_wide(values), **_rotary_dim(values)}


def _latent(values: Json) -> Json:
    """Only a part of each head of latent attention rotates: to rotary positions, that is the head."""
    return {"head_dim": size} if (size := size_of(values.get("qk_rope_head_dim"))) else {}


_ALL_BIASES: Final = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
_GELU_NEW: Final = {"hidden_act": "gelu_new"}
_GLM: Final = Dialect(
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
        "attention_out_bias": False,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131_072,
    }
)
_OLMO: Final = Dialect(defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048})
_QWEN2: Final = Dialect(
    defaults={"attention_bias": True, "attention_out_bias": False, "max_window_layers": 28}, window_switch=True
)

DIALECTS: Final[Mapping[str, Dialect]] = {
    **HYBRIDS,
    **ENCODERS,
    **GEMMAS,
    "afmoe": Dialect(
        names={"num_local_experts": "num_experts"},
        defaults={
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "sliding_window": 1024,
            "max_position_embeddings": 16_384,
        },
        window_every=4,
        rotates="windows",
    ),
    "bloom": Dialect(
        names={"hidden_size": "n_embed", "max_position_embeddings": "seq_length"},
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            **_ALL_BIASES,
        },
        derived=_wide,
        rotates="none",
    ),
    "apertus": Dialect(defaults={"rms_norm_eps": 1e-5, "hidden_act": "xielu", "rope_theta": 12_000_000.0}),
    "arcee": Dialect(defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2", "max_position_embeddings": 4096}),
    "chatglm": Dialect(
        names={
            "num_hidden_layers": "num_layers",
            "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels",
            "vocab_size": "padded_vocab_size",
            "max_position_embeddings": "seq_length",
            "rms_norm_eps": "layernorm_epsilon",
            "attention_out_bias": "add_bias_linear",
            "mlp_bias": "add_bias_linear",
        },
        defaults={"layernorm_epsilon": 1e-5, "add_bias_linear": False, "partial_rotary_factor": 0.5},
        derived=chatglm,
    ),
    "cohere": Dialect(defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 8192}),
    "cohere2": Dialect(
        defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 8192},
        window_every=4,
        rotates="windows",
    ),
    "cwm": Dialect(defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "sliding_window": 8192}, window_every=4),
    "deepseek_v2": Dialect(defaults={"max_position_embeddings": 2048}, derived=_latent),
    "deepseek_v3": Dialect(defaults={"attention_out_bias": False, "max_position_embeddings": 4096}, derived=_latent),
    "dots1": Dialect(
        defaults={"sliding_window": 4096, "max_window_layers": 62, "max_position_embeddings": 2048}, window_switch=True
    ),
    "ernie4_5": Dialect(
        names={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "tie_word_embeddings": True, "rope_theta": 500_000.0},
    ),
    "ernie4_5_moe": Dialect(defaults={"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": True}),
    "exaone4": Dialect(defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096}, window_every=4, rotates="windows"),
    "falcon": Dialect(
        names={
            "attention_bias": "bias",
            "mlp_bias": "bias",
            "hidden_act": "activation",
            "intermediate_size": "ffn_hidden_size",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
        },
        derived=_falcon,
    ),
    "gemma": Dialect(
        defaults={
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
        }
    ),
    "gemma2": Dialect(
        defaults={
            "head_dim": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
        window_every=2,
    ),
    "gemma3_text": Dialect(
        defaults={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "max_position_embeddings": 131_072,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
        window_every=6,
    ),
    "glm": _GLM,
    "glm4": _GLM,
    "glm4_moe_lite": Dialect(defaults={"rms_norm_eps": 1e-5}, derived=_latent),
    "glm4_moe": Dialect(defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "attention_out_bias": False}),
    "gpt2": Dialect(
        defaults={"n_positions": 1024, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, **_ALL_BIASES, **_GELU_NEW},
        derived=_wide,
        rotates="none",
    ),
    "gpt_bigcode": Dialect(
        defaults={
            "n_positions": 1024,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            **_ALL_BIASES,
        },
        derived=_gpt_bigcode,
        rotates="none",
    ),
    "gpt_neox": Dialect(
        names={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "attention_bias": True,
            "mlp_bias": True,
            "partial_rotary_factor": 0.25,
            "max_position_embeddings": 2048,
        },
    ),
    "gpt_oss": Dialect(
        defaults={
            "rms_norm_eps": 1e-5,
            "head_dim": 64,
            "sliding_window": 128,
            "attention_bias": True,
            "rope_theta": 150_000.0,
        },
        window_every=2,
    ),
    "gptj": Dialect(
        defaults={"n_positions": 2048, "rms_norm_eps": 1e-5, "mlp_bias": True, "rotary_dim": 64, **_GELU_NEW},
        derived=_gptj,
    ),
    "flex_olmo": Dialect(defaults={"rope_theta": 500_000.0}),
    "granite": Dialect(defaults={"attention_multiplier": 1.0, "max_position_embeddings": 2048}),
    "granitemoe": Dialect(defaults={"attention_multiplier": 1.0, "max_position_embeddings": 2048}),
    "helium": Dialect(defaults={"rms_norm_eps": 1e-8, "head_dim": 128, "rope_theta": 100_000.0}),
    "hunyuan_v1_dense": Dialect(defaults={"rms_norm_eps": 1e-5}),
    "hunyuan_v1_moe": Dialect(
        names={"num_experts_per_tok": "moe_topk"}, defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
    ),
    "jais2": Dialect(defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2", **_ALL_BIASES}),
    "llama": Dialect(defaults={"max_position_embeddings": 2048}),
    "llama4_text": Dialect(
        defaults={
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "rope_theta": 500_000.0,
            "max_position_embeddings": 131_072,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
        },
        has_chunks=True,
    ),
    "mimo_v2_flash": Dialect(
        defaults={
            "rms_norm_eps": 1e-5,
            "head_dim": 192,
            "sliding_window": 129,
            "num_key_value_heads": 4,
            "attention_out_bias": False,
            "partial_rotary_factor": 0.334,
            "max_position_embeddings": 131_072,
        },
        derived=mimo,
    ),
    "ministral3": Dialect(
        defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 262_144}
    ),
    "mistral": Dialect(defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072}),
    "minicpm3": Dialect(
        defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 32_768}, derived=_latent
    ),
    "mpt": Dialect(
        names={
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "max_position_embeddings": "max_seq_len",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
        },
        derived=_wide,
        rotates="none",
    ),
    "minimax_m2": Dialect(derived=_rotary_dim, defaults={"rope_theta": 5_000_000.0, "num_key_value_heads": 8}),
    "mixtral": Dialect(
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    ),
    "nemotron": Dialect(
        names={"rms_norm_eps": "norm_eps"},
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "relu2",
            "partial_rotary_factor": 0.5,
            "max_position_embeddings": 4096,
        },
    ),
    "olmo": _OLMO,
    "olmo2": _OLMO,
    "olmo3": Dialect(defaults={**_OLMO.defaults, "sliding_window": 4096}, window_every=4),
    "olmoe": Dialect(defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),
    "opt": Dialect(
        names={
            "attention_bias": "enable_bias",
            "attention_out_bias": "enable_bias",
            "mlp_bias": "enable_bias",
            "intermediate_size": "ffn_dim",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "relu",
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            **_ALL_BIASES,
        },
        rotates="none",
    ),
    "persimmon": Dialect(
        defaults={
            "rms_norm_eps": 1e-5,
            "hidden_act": "relu2",
            "partial_rotary_factor": 0.5,
            "rope_theta": 25_000.0,
            **_ALL_BIASES,
        }
    ),
    "phi": Dialect(
        defaults={
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "max_position_embeddings": 2048,
            **_ALL_BIASES,
            **_GELU_NEW,
        }
    ),
    "phi3": Dialect(defaults={"rms_norm_eps": 1e-5}),
    "phimoe": Dialect(
        defaults={
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "rope_theta": 1_000_000.0,
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 131_072,
        }
    ),
    "qwen2": _QWEN2,
    "qwen2_moe": Dialect(
        defaults={"qkv_bias": True, "attention_out_bias": False, "max_window_layers": 28}, window_switch=True
    ),
    "qwen3": Dialect(defaults={"head_dim": 128, "max_window_layers": 28}, window_switch=True),
    "qwen3_moe": Dialect(window_switch=True),
    "seed_oss": Dialect(
        defaults={"head_dim": 128, "attention_bias": True, "attention_out_bias": False, "num_key_value_heads": 8}
    ),
    "smollm3": Dialect(
        defaults={"tie_word_embeddings": True, "max_position_embeddings": 32_768, "no_rope_layer_interval": 4}
    ),
    "stablelm": Dialect(
        names={"attention_bias": "use_qkv_bias"},
        defaults={
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.25,
            "attention_out_bias": False,
            "max_position_embeddings": 4096,
        },
    ),
    "starcoder2": Dialect(
        names={"attention_bias": "use_bias", "attention_out_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
            **_ALL_BIASES,
        },
    ),
}
SAME_AS: Final[Mapping[str, str]] = {"kimi_k2": "deepseek_v3"}  # model types whose configs are those of another
