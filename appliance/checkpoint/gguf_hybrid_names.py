"""The GGUF tensor names of architectures with recurrent layers, and their Hugging Face names."""

from typing import Final

_LAYER: Final = "model.layers.{n}."
_TOP: Final = {"token_embd": "model.embed_tokens", "output": "lm_head"}
ATTENTION: Final = {
    "blk.{n}.attn_q": f"{_LAYER}self_attn.q_proj",
    "blk.{n}.attn_k": f"{_LAYER}self_attn.k_proj",
    "blk.{n}.attn_v": f"{_LAYER}self_attn.v_proj",
    "blk.{n}.attn_output": f"{_LAYER}self_attn.o_proj",
}


def _state_space(where: str) -> dict[str, str]:
    return {
        "blk.{n}.ssm_in": f"{where}.in_proj",
        "blk.{n}.ssm_conv1d": f"{where}.conv1d",
        "blk.{n}.ssm_norm": f"{where}.norm",
        "blk.{n}.ssm_out": f"{where}.out_proj",
    }


def _selection(where: str) -> dict[str, str]:
    """The names of Mamba 1 alone."""
    return {
        "blk.{n}.ssm_x": f"{where}.x_proj",
        "blk.{n}.ssm_dt": f"{where}.dt_proj",
        "blk.{n}.ssm_dt_norm": f"{where}.dt_layernorm",
        "blk.{n}.ssm_b_norm": f"{where}.b_layernorm",
        "blk.{n}.ssm_c_norm": f"{where}.c_layernorm",
    }


def _rates(where: str, *others: str) -> dict[str, str]:
    """The names of parameters, which have no ending."""
    stored = {"A_log": "blk.{n}.ssm_a", "D": "blk.{n}.ssm_d", "dt_bias": "blk.{n}.ssm_dt.bias"}
    return {stored[name]: f"{where}.{name}" for name in ("A_log", *others)}


_BACKBONE: Final = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "backbone.layers.{n}.norm",
    **_state_space("backbone.layers.{n}.mixer"),
}
_MIXER: Final = "backbone.layers.{n}.mixer"
_FEED_FORWARD: Final = {
    "output_norm": "model.final_layernorm",
    "blk.{n}.attn_norm": f"{_LAYER}input_layernorm",
    "blk.{n}.ffn_norm": f"{_LAYER}pre_ff_layernorm",
    **{f"blk.{{n}}.ffn_{name}": f"{_LAYER}feed_forward.{name}_proj" for name in ("gate", "up", "down")},
}
_NEMOTRON_H: Final = (
    _BACKBONE
    | {key: name.replace(f"{_LAYER}self_attn", _MIXER) for key, name in ATTENTION.items()}
    | {
        "blk.{n}.ffn_up": f"{_MIXER}.up_proj",
        "blk.{n}.ffn_down": f"{_MIXER}.down_proj",
        "blk.{n}.ffn_gate_inp": f"{_MIXER}.gate",
        "blk.{n}.ffn_up_exps": f"{_MIXER}.experts.up_proj",
        "blk.{n}.ffn_down_exps": f"{_MIXER}.experts.down_proj",
        "blk.{n}.ffn_up_shexp": f"{_MIXER}.shared_experts.up_proj",
        "blk.{n}.ffn_down_shexp": f"{_MIXER}.shared_experts.down_proj",
        "blk.{n}.ffn_latent_down": f"{_MIXER}.fc1_latent_proj",
        "blk.{n}.ffn_latent_up": f"{_MIXER}.fc2_latent_proj",
    }
)
_GATED_DELTA: Final = {
    "blk.{n}.attn_qkv": f"{_LAYER}linear_attn.in_proj_qkv",
    "blk.{n}.attn_gate": f"{_LAYER}linear_attn.in_proj_z",
    "blk.{n}.ssm_ba": f"{_LAYER}linear_attn.in_proj_ba",
    "blk.{n}.ssm_beta": f"{_LAYER}linear_attn.in_proj_b",
    "blk.{n}.ssm_alpha": f"{_LAYER}linear_attn.in_proj_a",
    "blk.{n}.ssm_conv1d": f"{_LAYER}linear_attn.conv1d",
    "blk.{n}.ssm_norm": f"{_LAYER}linear_attn.norm",
    "blk.{n}.ssm_out": f"{_LAYER}linear_attn.out_proj",
}
_BY_CHANNEL: Final = {
    **{f"ssm_{part}_{rank}": f"{part}_{rank}_proj" for part in "fg" for rank in "ab"},
    **{f"ssm_conv1d_{part}": f"{part}_conv1d" for part in "qkv"},
    "ssm_beta": "b_proj",
    "ssm_norm": "o_norm",
}
HYBRID_NAMES: Final[dict[str, dict[str, str]]] = {
    "falcon-h1": _TOP | ATTENTION | _FEED_FORWARD | _state_space(f"{_LAYER}mamba"),
    "jamba": _TOP
    | ATTENTION
    | _FEED_FORWARD
    | _state_space(f"{_LAYER}mamba")
    | _selection(f"{_LAYER}mamba")
    | {"blk.{n}.ffn_gate_inp": f"{_LAYER}feed_forward.router"}
    | {f"blk.{{n}}.ffn_{name}_exps": f"{_LAYER}feed_forward.experts.{name}_proj" for name in ("gate", "up", "down")},
    "mamba": _BACKBONE | _selection(_MIXER),
    "mamba2": _BACKBONE,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
}
# Beside the names of attention and experts.
STATE_SPACE: Final = _state_space(f"{_LAYER}mamba")
GATED_DELTA: Final = _GATED_DELTA
DELTA_BY_CHANNEL: Final = {f"blk.{{n}}.{key}": f"{_LAYER}self_attn.{name}" for key, name in _BY_CHANNEL.items()}
# Tensors whose names have no ending, or another one.
HYBRID_PARAMETERS: Final[dict[str, dict[str, str]]] = {
    "falcon-h1": _rates(f"{_LAYER}mamba", "D", "dt_bias") | {"blk.{n}.ffn_norm": f"{_LAYER}pre_ff_layernorm.weight"},
    "granitehybrid": _rates(f"{_LAYER}mamba", "D", "dt_bias"),
    "jamba": _rates(f"{_LAYER}mamba", "D"),
    "mamba": _rates(_MIXER, "D"),
    "mamba2": _rates(_MIXER, "D", "dt_bias"),
    "nemotron_h": _rates(_MIXER, "D", "dt_bias"),
    "nemotron_h_moe": _rates(_MIXER, "D", "dt_bias"),
    **dict.fromkeys(("qwen35", "qwen35moe"), _rates(f"{_LAYER}linear_attn", "dt_bias")),
    "kimi-linear": _rates(f"{_LAYER}self_attn", "dt_bias"),
    "qwen3next": _rates(f"{_LAYER}linear_attn", "dt_bias"),
}
