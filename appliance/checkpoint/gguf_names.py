"""The GGUF tensor names and their Hugging Face names, by family. `{n}` is the layer number.

The GGUF side is ggml's tensor table (gguf-py, constants.py); the Hugging Face side is transformers' module names.
"""

import re
from math import prod
from typing import Final

from appliance.checkpoint.gguf_encoders import DENSE_NAMES, ENCODER_NAMES
from appliance.checkpoint.gguf_hybrid_names import (
    ATTENTION,
    DELTA_BY_CHANNEL,
    GATED_DELTA,
    HYBRID_NAMES,
    HYBRID_PARAMETERS,
    STATE_SPACE,
)
from appliance.checkpoint.gguf_own_names import FALCON, GPT2, GPT_NEOX, LFM2, MPT

_MODEL: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION: Final = {"blk.{n}.attn_norm": "model.layers.{n}.input_layernorm", **ATTENTION}
_HEAD_NORMS: Final = {
    "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_norm",
    "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_norm",
}
_GATED: Final = {
    "blk.{n}.ffn_gate": "model.layers.{n}.mlp.gate_proj",
    "blk.{n}.ffn_up": "model.layers.{n}.mlp.up_proj",
    "blk.{n}.ffn_down": "model.layers.{n}.mlp.down_proj",
}
_LLAMA: Final = _MODEL | _ATTENTION | _GATED | {"blk.{n}.ffn_norm": "model.layers.{n}.post_attention_layernorm"}
_EXPERTS: Final = {
    "blk.{n}.ffn_gate_inp": "model.layers.{n}.mlp.gate",
    "blk.{n}.ffn_gate_exps": "model.layers.{n}.mlp.experts.gate_proj",
    "blk.{n}.ffn_up_exps": "model.layers.{n}.mlp.experts.up_proj",
    "blk.{n}.ffn_down_exps": "model.layers.{n}.mlp.experts.down_proj",
}
_SHARED_EXPERTS: Final = {
    "blk.{n}.ffn_gate_shexp": "model.layers.{n}.mlp.shared_experts.gate_proj",
    "blk.{n}.ffn_up_shexp": "model.layers.{n}.mlp.shared_experts.up_proj",
    "blk.{n}.ffn_down_shexp": "model.layers.{n}.mlp.shared_experts.down_proj",
}
_GATED_SHARED_EXPERT: Final = {
    "blk.{n}.ffn_gate_inp_shexp": "model.layers.{n}.mlp.shared_expert_gate",
    "blk.{n}.ffn_gate_shexp": "model.layers.{n}.mlp.shared_expert.gate_proj",
    "blk.{n}.ffn_up_shexp": "model.layers.{n}.mlp.shared_expert.up_proj",
    "blk.{n}.ffn_down_shexp": "model.layers.{n}.mlp.shared_expert.down_proj",
}
_MIXTRAL: Final = {
    "blk.{n}.ffn_gate_inp": "model.layers.{n}.block_sparse_moe.gate",
    "blk.{n}.ffn_gate_exps": "model.layers.{n}.block_sparse_moe.experts.w1",
    "blk.{n}.ffn_up_exps": "model.layers.{n}.block_sparse_moe.experts.w3",
    "blk.{n}.ffn_down_exps": "model.layers.{n}.block_sparse_moe.experts.w2",
}
_GEMMA2: Final = (
    _MODEL
    | _ATTENTION
    | _GATED
    | {
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.ffn_norm": "model.layers.{n}.pre_feedforward_layernorm",
        "blk.{n}.post_ffw_norm": "model.layers.{n}.post_feedforward_layernorm",
    }
)
_LAYER_INPUTS: Final = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.{n}.inp_gate": "model.layers.{n}.per_layer_input_gate",
    "blk.{n}.proj": "model.layers.{n}.per_layer_projection",
    "blk.{n}.post_norm": "model.layers.{n}.post_per_layer_input_norm",
}
_STREAMS: Final = {
    "altup_proj": "model.altup_projections",
    "altup_unembd_proj": "model.altup_unembed_projections",
    "blk.{n}.altup_correct_coef": "model.layers.{n}.altup.correction_coefs",
    "blk.{n}.altup_predict_coef": "model.layers.{n}.altup.prediction_coefs",
    "blk.{n}.altup_router": "model.layers.{n}.altup.modality_router",
    "blk.{n}.altup_router_norm": "model.layers.{n}.altup.router_norm",
    "blk.{n}.laurel_l": "model.layers.{n}.laurel.linear_left",
    "blk.{n}.laurel_r": "model.layers.{n}.laurel.linear_right",
    "blk.{n}.laurel_post_norm": "model.layers.{n}.laurel.post_laurel_norm",
}
_OUTPUT_NORMS: Final = (
    _MODEL
    | _ATTENTION
    | _GATED
    | {
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.post_ffw_norm": "model.layers.{n}.post_feedforward_layernorm",
    }
)
_GLM4: Final = (
    _MODEL
    | _ATTENTION
    | {
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_self_attn_layernorm",
        "blk.{n}.ffn_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.ffn_up": "model.layers.{n}.mlp.gate_up_proj",
        "blk.{n}.ffn_down": "model.layers.{n}.mlp.down_proj",
        "blk.{n}.post_ffw_norm": "model.layers.{n}.post_mlp_layernorm",
    }
)
_PHI2: Final = (
    _MODEL
    | _ATTENTION
    | {
        "output_norm": "model.final_layernorm",
        "blk.{n}.attn_output": "model.layers.{n}.self_attn.dense",
        "blk.{n}.ffn_up": "model.layers.{n}.mlp.fc1",
        "blk.{n}.ffn_down": "model.layers.{n}.mlp.fc2",
    }
)
_PHI3: Final = _MODEL | {
    "blk.{n}.attn_norm": "model.layers.{n}.input_layernorm",
    "blk.{n}.attn_qkv": "model.layers.{n}.self_attn.qkv_proj",
    "blk.{n}.attn_output": "model.layers.{n}.self_attn.o_proj",
    "blk.{n}.ffn_norm": "model.layers.{n}.post_attention_layernorm",
    "blk.{n}.ffn_up": "model.layers.{n}.mlp.gate_up_proj",
    "blk.{n}.ffn_down": "model.layers.{n}.mlp.down_proj",
}
_LATENT: Final = {
    "blk.{n}.attn_q": "model.layers.{n}.self_attn.q_proj",
    "blk.{n}.attn_q_a": "model.layers.{n}.self_attn.q_a_proj",
    "blk.{n}.attn_q_a_norm": "model.layers.{n}.self_attn.q_a_layernorm",
    "blk.{n}.attn_q_b": "model.layers.{n}.self_attn.q_b_proj",
    "blk.{n}.attn_kv_a_mqa": "model.layers.{n}.self_attn.kv_a_proj_with_mqa",
    "blk.{n}.attn_kv_a_norm": "model.layers.{n}.self_attn.kv_a_layernorm",
    "blk.{n}.attn_kv_b": "model.layers.{n}.self_attn.kv_b_proj",
    "blk.{n}.attn_k_b": "model.layers.{n}.self_attn.k_b_proj",
    "blk.{n}.attn_v_b": "model.layers.{n}.self_attn.v_b_proj",
}
_GRANITE_MOE: Final = {
    "blk.{n}.ffn_gate_inp": "model.layers.{n}.block_sparse_moe.router.layer",
    "blk.{n}.ffn_gate_exps": "model.layers.{n}.block_sparse_moe.gate_linear",
    "blk.{n}.ffn_up_exps": "model.layers.{n}.block_sparse_moe.up_linear",
    "blk.{n}.ffn_down_exps": "model.layers.{n}.block_sparse_moe.output_linear",
    "blk.{n}.ffn_gate_shexp": "model.layers.{n}.shared_mlp.gate_linear",
    "blk.{n}.ffn_up_shexp": "model.layers.{n}.shared_mlp.up_linear",
    "blk.{n}.ffn_down_shexp": "model.layers.{n}.shared_mlp.output_linear",
}
_GRANITE_DENSE: Final = {
    "blk.{n}.ffn_gate": "model.layers.{n}.shared_mlp.gate_linear",
    "blk.{n}.ffn_up": "model.layers.{n}.shared_mlp.up_linear",
    "blk.{n}.ffn_down": "model.layers.{n}.shared_mlp.output_linear",
}
_LLAMA4: Final = {
    key: name.replace(".mlp.", ".feed_forward.").replace("shared_experts", "shared_expert")
    for key, name in (_LLAMA | _EXPERTS | _SHARED_EXPERTS).items()
} | {"blk.{n}.ffn_gate_inp": "model.layers.{n}.feed_forward.router"}
_QWEN3_NEXT: Final = (
    _LLAMA
    | _HEAD_NORMS
    | _EXPERTS
    | _GATED_SHARED_EXPERT
    | GATED_DELTA
    | {"blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm"}
)
_GLM: Final = (
    _MODEL
    | _ATTENTION
    | {
        "blk.{n}.attn_qkv": "model.layers.{n}.self_attn.qkv_proj",
        "blk.{n}.ffn_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.ffn_up": "model.layers.{n}.mlp.gate_up_proj",
        "blk.{n}.ffn_down": "model.layers.{n}.mlp.down_proj",
    }
)
NAMES: Final[dict[str, dict[str, str]]] = {
    **HYBRID_NAMES,
    **ENCODER_NAMES,
    "granitehybrid": _LLAMA | _GRANITE_MOE | STATE_SPACE | _GRANITE_DENSE,
    "qwen3next": _QWEN3_NEXT,
    "qwen35": _QWEN3_NEXT,
    "qwen35moe": _QWEN3_NEXT,
    "afmoe": _OUTPUT_NORMS
    | _HEAD_NORMS
    | _EXPERTS
    | _SHARED_EXPERTS
    | {
        "blk.{n}.attn_gate": "model.layers.{n}.self_attn.gate_proj",
        "blk.{n}.ffn_norm": "model.layers.{n}.pre_mlp_layernorm",
        "blk.{n}.post_ffw_norm": "model.layers.{n}.post_mlp_layernorm",
        "blk.{n}.ffn_gate_inp": "model.layers.{n}.mlp.router.gate",
    },
    "baichuan": _LLAMA,
    "chatglm": _GLM,
    "internlm2": _LLAMA,
    "jais2": _LLAMA,
    "kimi-linear": _LLAMA
    | _LATENT
    | DELTA_BY_CHANNEL
    | _MIXTRAL
    | {key: name.replace(".mlp.", ".block_sparse_moe.") for key, name in _SHARED_EXPERTS.items()},
    "mimo2": _LLAMA | _EXPERTS,
    "mistral3": _LLAMA,
    "olmo": _LLAMA,
    "phimoe": _LLAMA | _MIXTRAL,
    "starcoder": GPT2,
    "bloom": FALCON
    | {
        "token_embd_norm": "transformer.word_embeddings_layernorm",
        "blk.{n}.ffn_norm": "transformer.h.{n}.post_attention_layernorm",
    },
    "deepseek2": _LLAMA | _LATENT | _EXPERTS | _SHARED_EXPERTS,
    "falcon": FALCON | {"blk.{n}.attn_norm_2": "transformer.h.{n}.ln_attn"},
    "granitemoe": _LLAMA | _GRANITE_MOE,
    "hunyuan-moe": _LLAMA
    | _EXPERTS
    | {key: name.replace("shared_experts", "shared_mlp") for key, name in _SHARED_EXPERTS.items()}
    | {
        "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.query_layernorm",
        "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.key_layernorm",
        "blk.{n}.ffn_gate_inp": "model.layers.{n}.mlp.gate.wg",
    },
    "llama4": _LLAMA4,
    "minicpm": _LLAMA,
    "minicpm3": _LLAMA | _LATENT,
    "mpt": MPT,
    "llama": _LLAMA | _MIXTRAL,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | _HEAD_NORMS,
    "qwen2moe": _LLAMA | _EXPERTS | _GATED_SHARED_EXPERT,
    "qwen3moe": _LLAMA | _HEAD_NORMS | _EXPERTS,
    "dots1": _LLAMA | _HEAD_NORMS | _EXPERTS | _SHARED_EXPERTS,
    "glm4moe": _LLAMA
    | _HEAD_NORMS
    | _EXPERTS
    | _SHARED_EXPERTS
    | {"blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm"},
    "ernie4_5-moe": _LLAMA | _EXPERTS | _SHARED_EXPERTS,
    "olmoe": _LLAMA | _HEAD_NORMS | _EXPERTS,
    "minimax-m2": _LLAMA | _HEAD_NORMS | _MIXTRAL,
    "gptneox": GPT_NEOX,
    "gpt-oss": _MODEL
    | _ATTENTION
    | _EXPERTS
    | {
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.ffn_gate_inp": "model.layers.{n}.mlp.router",
    },
    "arcee": _LLAMA,
    "cohere2": _LLAMA,
    "command-r": _LLAMA | _HEAD_NORMS,
    "ernie4_5": _LLAMA,
    "exaone4": _OUTPUT_NORMS | _HEAD_NORMS,
    "gemma": _LLAMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA2 | _HEAD_NORMS,
    "gemma-embedding": _GEMMA2 | _HEAD_NORMS | DENSE_NAMES,
    "gemma3n": _GEMMA2 | _HEAD_NORMS | _LAYER_INPUTS | _STREAMS,
    "gemma4": _GEMMA2
    | _HEAD_NORMS
    | _LAYER_INPUTS
    | {
        "blk.{n}.ffn_gate_inp": "model.layers.{n}.router.proj",
        "blk.{n}.pre_ffw_norm_2": "model.layers.{n}.pre_feedforward_layernorm_2",
        "blk.{n}.post_ffw_norm_1": "model.layers.{n}.post_feedforward_layernorm_1",
        "blk.{n}.post_ffw_norm_2": "model.layers.{n}.post_feedforward_layernorm_2",
    },
    "glm4": _GLM4,
    "granite": _LLAMA,
    "hunyuan-dense": _LLAMA
    | {
        "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.query_layernorm",
        "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.key_layernorm",
    },
    "lfm2": LFM2,
    "lfm2moe": LFM2
    | {
        "blk.{n}.ffn_gate_inp": "model.layers.{n}.feed_forward.gate",
        "blk.{n}.ffn_gate_exps": "model.layers.{n}.feed_forward.experts.w1",
        "blk.{n}.ffn_up_exps": "model.layers.{n}.feed_forward.experts.w3",
        "blk.{n}.ffn_down_exps": "model.layers.{n}.feed_forward.experts.w2",
    },
    "nemotron": _LLAMA,
    "olmo2": _OUTPUT_NORMS | _HEAD_NORMS,
    "phi2": _PHI2,
    "phi3": _PHI3,
    "gpt2": GPT2,
    "seed_oss": _MODEL
    | _ATTENTION
    | _GATED
    | {"blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm"},
    "smollm3": _LLAMA,
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA
    | {"blk.{n}.ffn_up": "model.layers.{n}.mlp.c_fc", "blk.{n}.ffn_down": "model.layers.{n}.mlp.c_proj"},
}
# Tensors that are no module's weight: the Hugging Face name is the whole name.
_CORRECTIONS: Final = {
    "nemotron_h_moe": "backbone.layers.{n}.mixer.gate.e_score_correction_bias",
    "afmoe": "model.layers.{n}.mlp.expert_bias",
    "kimi-linear": "model.layers.{n}.block_sparse_moe.gate.e_score_correction_bias",
    "mimo2": "model.layers.{n}.mlp.gate.e_score_correction_bias",
    "deepseek2": "model.layers.{n}.mlp.gate.e_score_correction_bias",
    "minimax-m2": "model.layers.{n}.block_sparse_moe.e_score_correction_bias",
    "dots1": "model.layers.{n}.mlp.gate.e_score_correction_bias",
    "glm4moe": "model.layers.{n}.mlp.gate.e_score_correction_bias",
    "lfm2moe": "model.layers.{n}.feed_forward.expert_bias",
    "ernie4_5-moe": "model.layers.{n}.mlp.moe_statics.e_score_correction_bias",
}
_ROW_VECTORS: Final = ("ffn_gate_inp_shexp.weight",)  # matrices of one row, which older files have as vectors
_HEADS: Final = ("attn_k_b.weight", "attn_v_b.weight")  # matrices of all heads, which files have as stacks
# These are not weights of the model: they become part of its config (gguf_config).
ROPE_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

# Tensors whose Hugging Face names have no ending, or another one.
_PARAMETERS: Final[dict[str, dict[str, str]]] = {
    **HYBRID_PARAMETERS,
    "gemma3n": {"blk.{n}.altup_correct_scale.weight": "model.layers.{n}.altup.correct_output_scale"},
    "gemma4": {
        "blk.{n}.layer_output_scale.weight": "model.layers.{n}.layer_scalar",
        "blk.{n}.ffn_gate_inp.scale": "model.layers.{n}.router.scale",
        "blk.{n}.ffn_down_exps.scale": "model.layers.{n}.router.per_expert_scale",
        "blk.{n}.ffn_gate_up_exps.weight": "model.layers.{n}.experts.gate_up_proj",
        "blk.{n}.ffn_down_exps.weight": "model.layers.{n}.experts.down_proj",
    },
}
_WITH_SINKS: Final = ("gpt-oss", "mimo2")
_LAYER: Final = re.compile(r"^blk\.(\d{1,4})\.")


def hugging_face_name(architecture: str, stored: str) -> str | None:
    """Returns the Hugging Face name of a GGUF tensor; None if the family has no such tensor."""
    if (bare := _LAYER.match(stored)) is not None:
        parameter = _PARAMETERS.get(architecture, {}).get(_LAYER.sub("blk.{n}.", stored))
        if parameter is not None:
            return parameter.replace("{n}", bare.group(1))
    base, _, suffix = stored.rpartition(".")
    if suffix not in ("weight", "bias"):
        return None
    match = _LAYER.match(base)
    pattern = _LAYER.sub("blk.{n}.", base) if match else base
    if match and pattern == "blk.{n}.exp_probs_b" and architecture in _CORRECTIONS:
        return _CORRECTIONS[architecture].replace("{n}", match.group(1))
    if match and pattern == "blk.{n}.attn_sinks" and architecture in _WITH_SINKS:
        return f"model.layers.{match.group(1)}.self_attn.sinks"
    name = NAMES[architecture].get(pattern)
    return None if name is None else f"{name.replace('{n}', match.group(1) if match else '')}.{suffix}"


def layer_of(stored: str) -> int | None:
    """Returns the layer of a GGUF tensor; None if it belongs to no layer."""
    match = _LAYER.match(stored)
    return int(match.group(1)) if match else None


def module_shape(stored: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that the Hugging Face module gives to a GGUF tensor of `shape`."""
    if stored.endswith(_ROW_VECTORS) and len(shape) == 1:
        return (1, *shape)
    return (prod(shape[:-1]), shape[-1]) if stored.endswith(_HEADS) else shape
