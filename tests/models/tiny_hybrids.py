"""Tiny checkpoints of families with recurrent mixers."""

from typing import Any

from tests.models.tiny_config import GRANITE, HIDDEN_SIZE, MOE, SIZES, VOCAB_SIZE, Tiny

_MAMBA: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN_SIZE, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 3,
}  # fmt: skip
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_chunk_size": 8,
}  # fmt: skip
_JAMBA: dict[str, Any] = {"mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1}
_LFM2: dict[str, Any] = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
_GATED_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
_NEMOTRON_H: dict[str, Any] = {
    "time_step_min": 1e-12,  # a limit in transformers alone
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 8,
    "head_dim": 24,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "n_routed_experts": 8,
}

_ZAMBA2: dict[str, Any] = {
    "time_step_min": 1e-12,  # a limit in transformers alone
    "tie_word_embeddings": True,
    "layers_block_type": ["hybrid", "hybrid", "hybrid"],
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "num_mem_blocks": 2,
    "n_mamba_heads": 8,
    "mamba_ngroups": 2,
    "mamba_d_state": 16,
    "chunk_size": 8,
    "adapter_rank": 8,
}

FAMILIES: dict[str, Tiny] = {
    "bamba": Tiny("BambaConfig", {**_MAMBA2, "attn_layer_indices": [1]}),
    "falcon_h1": Tiny(
        "FalconH1Config",
        {
            **_MAMBA2,
            "mamba_d_ssm": 96,
            "lm_head_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "mlp_multipliers": [0.8, 0.6],
            "key_multiplier": 0.7,
            "attention_out_multiplier": 0.9,
            "attention_in_multiplier": 1.2,
            "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.4,
        },
    ),
    "falcon_mamba": Tiny("FalconMambaConfig", sizes=_MAMBA),
    "granitemoehybrid": Tiny(
        "GraniteMoeHybridConfig",
        {
            **GRANITE,
            **_MAMBA2,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_hidden_layers": 3,
            "shared_intermediate_size": 80,
            "num_local_experts": 6,
        },
    ),
    "jamba": Tiny("JambaConfig", {**_JAMBA, "num_experts": 6, "num_hidden_layers": 4}),
    "olmo_hybrid": Tiny(
        "OlmoHybridConfig",
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_hidden_layers": 3,
            # As wide as each other, because transformers saves their convolutions in equal parts.
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 8,
        },
    ),
    "kimi_linear": Tiny(
        "KimiLinearConfig",
        {
            **MOE,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "linear_num_heads": 4,
            "linear_head_dim": 12,
        },
    ),
    "lfm2": Tiny("Lfm2Config", {**_LFM2, "block_multiple_of": 32}),
    "lfm2_moe": Tiny(
        "Lfm2MoeConfig", {**_LFM2, **MOE, "num_experts": 6, "num_dense_layers": 1, "tie_word_embeddings": True}
    ),
    "qwen3_next": Tiny(
        "Qwen3NextConfig",
        {**_GATED_DELTA, **MOE, "num_experts": 6, "shared_expert_intermediate_size": 48, "mlp_only_layers": [1]},
    ),
    "qwen3_5": Tiny("Qwen3_5TextConfig", _GATED_DELTA),
    "qwen3_5_moe": Tiny(
        "Qwen3_5MoeTextConfig",
        {**_GATED_DELTA, **MOE, "num_experts": 8, "shared_expert_intermediate_size": 48},
        {key: value for key, value in SIZES.items() if key != "intermediate_size"},
    ),
    "mamba": Tiny("MambaConfig", sizes=_MAMBA),
    "mamba2": Tiny("Mamba2Config", {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8}, _MAMBA),
    "recurrentgemma": Tiny(
        "RecurrentGemmaConfig",
        {
            "num_hidden_layers": 4,
            "lru_width": 128,
            "conv1d_width": 3,
            "attention_window_size": 8,
            "logits_soft_cap": 5.0,
        },
    ),
    "zamba2": Tiny("Zamba2Config", {**_ZAMBA2, "use_shared_attention_adapter": True, "use_mem_rope": True}),
    "nemotron_h": Tiny(
        "NemotronHConfig",
        {**_NEMOTRON_H, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    ),
}
VARIANTS: dict[str, Tiny] = {
    "zamba2-plain": Tiny(
        "Zamba2Config",
        {**_ZAMBA2, "num_mem_blocks": 1, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    ),
    "falcon_h1-norm": Tiny("FalconH1Config", {**_MAMBA2, "mamba_d_ssm": None, "mamba_rms_norm": True}),
    "granitemoehybrid-dense": Tiny(
        "GraniteMoeHybridConfig",
        {
            "layer_types": ["attention", "attention"],
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
            "num_local_experts": 0,
        },
    ),
    "jamba-dense": Tiny("JambaConfig", {**_JAMBA, "num_experts": 1, "mamba_proj_bias": True}),
    "lfm2-bias": Tiny("Lfm2Config", {**_LFM2, "conv_bias": True, "block_auto_adjust_ff_dim": False}),
    "mamba-bias": Tiny("MambaConfig", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}, _MAMBA),
    "nemotron_h-dense": Tiny(
        "NemotronHConfig", {**_NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp", "full_attention"]}
    ),
    "nemotron_h-latent": Tiny(
        "NemotronHConfig",
        {
            **_NEMOTRON_H,
            "layers_block_type": ["moe", "linear_attention", "full_attention", "moe"],
            "moe_latent_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
}
