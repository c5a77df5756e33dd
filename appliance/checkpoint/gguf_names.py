"""The GGUF tensor names and their Hugging Face names, by family. `{n}` is the layer number.

The GGUF side is ggml's tensor table (gguf-py, constants.py); the Hugging Face side is transformers' module names.
"""

import re
from typing import Final

_MODEL: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION: Final = {
    "blk.{n}.attn_norm": "model.layers.{n}.input_layernorm",
    "blk.{n}.attn_q": "model.layers.{n}.self_attn.q_proj",
    "blk.{n}.attn_k": "model.layers.{n}.self_attn.k_proj",
    "blk.{n}.attn_v": "model.layers.{n}.self_attn.v_proj",
    "blk.{n}.attn_output": "model.layers.{n}.self_attn.o_proj",
}
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
_GPT2: Final = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.h.{n}.ln_1",
    "blk.{n}.attn_qkv": "transformer.h.{n}.attn.c_attn",
    "blk.{n}.attn_output": "transformer.h.{n}.attn.c_proj",
    "blk.{n}.ffn_norm": "transformer.h.{n}.ln_2",
    "blk.{n}.ffn_up": "transformer.h.{n}.mlp.c_fc",
    "blk.{n}.ffn_down": "transformer.h.{n}.mlp.c_proj",
}
_LFM2: Final = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
    "blk.{n}.attn_norm": "model.layers.{n}.operator_norm",
    "blk.{n}.attn_q": "model.layers.{n}.self_attn.q_proj",
    "blk.{n}.attn_k": "model.layers.{n}.self_attn.k_proj",
    "blk.{n}.attn_v": "model.layers.{n}.self_attn.v_proj",
    "blk.{n}.attn_output": "model.layers.{n}.self_attn.out_proj",
    "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_layernorm",
    "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_layernorm",
    "blk.{n}.shortconv.conv": "model.layers.{n}.conv.conv",
    "blk.{n}.shortconv.in_proj": "model.layers.{n}.conv.in_proj",
    "blk.{n}.shortconv.out_proj": "model.layers.{n}.conv.out_proj",
    "blk.{n}.ffn_norm": "model.layers.{n}.ffn_norm",
    "blk.{n}.ffn_gate": "model.layers.{n}.feed_forward.w1",
    "blk.{n}.ffn_up": "model.layers.{n}.feed_forward.w3",
    "blk.{n}.ffn_down": "model.layers.{n}.feed_forward.w2",
}
_GPT_NEOX: Final = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk.{n}.attn_norm": "gpt_neox.layers.{n}.input_layernorm",
    "blk.{n}.attn_qkv": "gpt_neox.layers.{n}.attention.query_key_value",
    "blk.{n}.attn_output": "gpt_neox.layers.{n}.attention.dense",
    "blk.{n}.ffn_norm": "gpt_neox.layers.{n}.post_attention_layernorm",
    "blk.{n}.ffn_up": "gpt_neox.layers.{n}.mlp.dense_h_to_4h",
    "blk.{n}.ffn_down": "gpt_neox.layers.{n}.mlp.dense_4h_to_h",
}
NAMES: Final[dict[str, dict[str, str]]] = {
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
    "gptneox": _GPT_NEOX,
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
    "glm4": _GLM4,
    "granite": _LLAMA,
    "hunyuan-dense": _LLAMA
    | {
        "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.query_layernorm",
        "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.key_layernorm",
    },
    "lfm2": _LFM2,
    "lfm2moe": _LFM2
    | {
        "blk.{n}.ffn_gate_inp": "model.layers.{n}.feed_forward.gate",
        "blk.{n}.ffn_gate_exps": "model.layers.{n}.feed_forward.experts.w1",
        "blk.{n}.ffn_up_exps": "model.layers.{n}.feed_forward.experts.w3",
        "blk.{n}.ffn_down_exps": "model.layers.{n}.feed_forward.experts.w2",
    },
    "mamba": {
        "token_embd": "backbone.embeddings",
        "output_norm": "backbone.norm_f",
        "output": "lm_head",
        "blk.{n}.attn_norm": "backbone.layers.{n}.norm",
        "blk.{n}.ssm_in": "backbone.layers.{n}.mixer.in_proj",
        "blk.{n}.ssm_conv1d": "backbone.layers.{n}.mixer.conv1d",
        "blk.{n}.ssm_x": "backbone.layers.{n}.mixer.x_proj",
        "blk.{n}.ssm_dt": "backbone.layers.{n}.mixer.dt_proj",
        "blk.{n}.ssm_out": "backbone.layers.{n}.mixer.out_proj",
    },
    "nemotron": _LLAMA,
    "olmo2": _OUTPUT_NORMS | _HEAD_NORMS,
    "phi2": _PHI2,
    "phi3": _PHI3,
    "gpt2": _GPT2,
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
    "minimax-m2": "model.layers.{n}.block_sparse_moe.e_score_correction_bias",
    "dots1": "model.layers.{n}.mlp.gate.e_score_correction_bias",
    "glm4moe": "model.layers.{n}.mlp.gate.e_score_correction_bias",
    "lfm2moe": "model.layers.{n}.feed_forward.expert_bias",
    "ernie4_5-moe": "model.layers.{n}.mlp.moe_statics.e_score_correction_bias",
}
# Matrices of one row, which files have as vectors.
ROW_VECTORS: Final = ("ffn_gate_inp_shexp.weight",)
# These are not weights of the model: they become part of its config (gguf_config).
ROPE_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

# Tensors whose names have no ending, in both.
_PARAMETERS: Final = {
    "mamba": {
        "blk.{n}.ssm_a": "backbone.layers.{n}.mixer.A_log",
        "blk.{n}.ssm_d": "backbone.layers.{n}.mixer.D",
    },
}
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
    if match and pattern == "blk.{n}.attn_sinks" and architecture == "gpt-oss":
        return f"model.layers.{match.group(1)}.self_attn.sinks"
    name = NAMES[architecture].get(pattern)
    return None if name is None else f"{name.replace('{n}', match.group(1) if match else '')}.{suffix}"


def layer_of(stored: str) -> int | None:
    """Returns the layer of a GGUF tensor; None if it belongs to no layer."""
    match = _LAYER.match(stored)
    return int(match.group(1)) if match else None
