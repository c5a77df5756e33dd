"""Tiny random checkpoints of every family, made with transformers' own classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.models import tiny_hybrids
from tests.models.tiny_config import GRANITE, HIDDEN_SIZE, MOE, SIZES, VOCAB_SIZE, Tiny

_EQUAL_HEADS: dict[str, Any] = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
_GPT_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "n_embd": HIDDEN_SIZE, "n_layer": 2, "n_head": 4, "n_positions": 128,
}  # fmt: skip
_BLOOM_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN_SIZE, "n_layer": 2, "n_head": 4}
_MPT_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "d_model": HIDDEN_SIZE, "n_layers": 2, "n_heads": 4, "max_seq_len": 128,
}  # fmt: skip
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.5,
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    "head_dim": 16,
    "tie_word_embeddings": True,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "num_hidden_layers": 3,
}
_GEMMA_LAYERS: dict[str, Any] = {
    "head_dim": 16,
    "tie_word_embeddings": True,
    "sliding_window": 8,
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")],
}
_PHI_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 64,
}
_DEEPSEEK: dict[str, Any] = {
    **MOE,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "norm_topk_prob": True,
}
_MLA: dict[str, Any] = {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 16,
    "num_key_value_heads": 4,
}
_LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "attention_chunk_size": 10,
    "no_rope_layer_interval": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 128,
    "floor_scale": 8,
    "attn_scale": 0.5,
}


def _rope(**values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, **values}}


_PHIMOE: dict[str, Any] = {
    "num_local_experts": 6, "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.2,
    **_rope(
        rope_type="longrope", short_factor=[1.0 + 0.1 * pair for pair in range(8)], short_mscale=1.25,
        long_factor=[1.5 + 0.5 * pair for pair in range(8)], long_mscale=1.5, original_max_position_embeddings=64,
    ),
}  # fmt: skip

FAMILIES: dict[str, Tiny] = {
    **tiny_hybrids.FAMILIES,
    "llama": Tiny("LlamaConfig"),
    "mistral": Tiny("MistralConfig", {"sliding_window": 8}),
    "qwen2": Tiny("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": Tiny("Qwen3Config", {"head_dim": 32, "attention_bias": True}),
    "gemma2": Tiny("Gemma2Config", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": Tiny("Gemma3TextConfig", {**_GEMMA, "sliding_window_pattern": 3}),
    "gemma3n": Tiny(
        "Gemma3nTextConfig",
        {
            **_GEMMA_LAYERS,
            "vocab_size_per_layer_input": 160,  # tokens beyond it have its first row
            "intermediate_size": [96, 64, 96, 128, 96],
            "activation_sparsity_pattern": [0.8, 0.0, 0.6, 0.0, 0.3],
            "laurel_rank": 32,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4": Tiny(
        "Gemma4TextConfig",
        {
            **_GEMMA_LAYERS,
            "global_head_dim": 32,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 3.0,
        },
    ),
    "phi3": Tiny("Phi3Config", {"rope_parameters": _PHI_ROPE, "original_max_position_embeddings": 64}),
    "gpt2": Tiny("GPT2Config", sizes=_GPT_SIZES),
    "gemma": Tiny("GemmaConfig", {"head_dim": 24, "tie_word_embeddings": True}),
    "cohere": Tiny("CohereConfig", {"logit_scale": 0.3, "tie_word_embeddings": True}),
    "cohere2": Tiny(
        "Cohere2Config",
        {"sliding_window": 8, "num_hidden_layers": 4, "logit_scale": 0.4, "tie_word_embeddings": True},
    ),
    "falcon": Tiny("FalconConfig", sizes=_EQUAL_HEADS),
    "gpt_bigcode": Tiny("GPTBigCodeConfig", sizes=_GPT_SIZES),
    "gptj": Tiny("GPTJConfig", {"rotary_dim": 8}, _GPT_SIZES),
    "gpt_neox": Tiny("GPTNeoXConfig", sizes=_EQUAL_HEADS),
    "glm": Tiny("GlmConfig", {"head_dim": 16}),
    "glm4": Tiny("Glm4Config", {"head_dim": 16}),
    "granite": Tiny("GraniteConfig", {**GRANITE}),
    "hunyuan": Tiny("HunYuanDenseV1Config", {"head_dim": 16}),
    "nemotron": Tiny("NemotronConfig", {"head_dim": 16}),
    "olmo": Tiny("OlmoConfig"),
    "olmo2": Tiny("Olmo2Config"),
    "olmo3": Tiny("Olmo3Config", {"sliding_window": 8, "num_hidden_layers": 4}),
    "opt": Tiny("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": HIDDEN_SIZE}, _EQUAL_HEADS),
    "persimmon": Tiny("PersimmonConfig", sizes=_EQUAL_HEADS),
    "phi": Tiny("PhiConfig"),
    "stablelm": Tiny("StableLmConfig", {"use_qkv_bias": True}),
    "starcoder2": Tiny("Starcoder2Config", {"sliding_window": 8}),
    "exaone4": Tiny("Exaone4Config", {"sliding_window": 8, "num_hidden_layers": 4}),
    "olmoe": Tiny("OlmoeConfig", {"num_experts": 6, "num_experts_per_tok": 2}),
    "flex_olmo": Tiny("FlexOlmoConfig", {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}),
    "granitemoe": Tiny(
        "GraniteMoeConfig",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "minimax_m2": Tiny(
        "MiniMaxM2Config", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "rotary_dim": 8}
    ),
    "gpt-oss": Tiny(
        "GptOssConfig",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 8,
            "swiglu_limit": 1.5,
            **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, truncate=False),
        },
    ),
    "deepseek2": Tiny(
        "DeepseekV2Config",
        {**_MLA, **MOE, "q_lora_rank": None, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
        _EQUAL_HEADS,
    ),
    "deepseek3": Tiny(
        "DeepseekV3Config",
        {
            **_DEEPSEEK,
            **_MLA,
            "num_hidden_layers": 3,
            **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=1.3),
        },
        _EQUAL_HEADS,
    ),
    "minicpm3": Tiny(
        "MiniCPM3Config", {**_MLA, "scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 32}, _EQUAL_HEADS
    ),
    "llama4": Tiny("Llama4TextConfig", {**_LLAMA4, "use_qk_norm": True, "interleave_moe_layer_step": 2}),
    "afmoe": Tiny(
        "AfmoeConfig",
        {
            **MOE,
            "num_experts": 6,
            "head_dim": 16,
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "mup_enabled": True,
            "route_scale": 1.7,
            "num_shared_experts": 1,
        },
    ),
    "bloom": Tiny("BloomConfig", sizes=_BLOOM_SIZES),
    "hunyuan-moe": Tiny("HunYuanMoEV1Config", {"head_dim": 16, "num_experts": 6, "moe_topk": 2}),
    "mimo2": Tiny(
        "MiMoV2FlashConfig",
        {
            **_DEEPSEEK,
            "n_shared_experts": 0,
            "head_dim": 24,
            "v_head_dim": 16,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 9,
        },
    ),
    "apertus": Tiny("ApertusConfig", _rope(rope_type="default")),
    "phimoe": Tiny("PhimoeConfig", _PHIMOE),
    "mistral3": Tiny(
        "Ministral3Config",
        {
            "head_dim": 16,
            **_rope(
                rope_type="yarn",
                factor=8.0,
                original_max_position_embeddings=16,
                llama_4_scaling_beta=0.4,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "mpt": Tiny("MptConfig", sizes=_MPT_SIZES),
    "mixtral": Tiny("MixtralConfig", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen2_moe": Tiny("Qwen2MoeConfig", {**MOE, "num_experts": 6, "shared_expert_intermediate_size": 64}),
    "qwen3_moe": Tiny("Qwen3MoeConfig", {**MOE, "num_experts": 6, "head_dim": 32, "norm_topk_prob": True}),
    "dots1": Tiny("Dots1Config", {**_DEEPSEEK, "num_hidden_layers": 3, "sliding_window": 8, "max_window_layers": 2}),
    "glm4_moe": Tiny("Glm4MoeConfig", {**_DEEPSEEK, "use_qk_norm": True, "attention_bias": True}),
    "ernie4_5_moe": Tiny(
        "Ernie4_5_MoeConfig", {**MOE, "moe_num_experts": 6, "moe_k": 2, "moe_layer_start_index": 1, "head_dim": 16}
    ),
}
VARIANTS: dict[str, Tiny] = {
    **tiny_hybrids.VARIANTS,
    "gemma4-experts": Tiny(
        "Gemma4TextConfig",
        {
            **_GEMMA_LAYERS,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "final_logit_softcapping": 3.0,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "granite-plain": Tiny("GraniteConfig", {**GRANITE, "attention_multiplier": 0.25}),  # of heads of 16
    "llama-equal": Tiny("LlamaConfig", {"num_key_value_heads": 4}),
    "bloom-odd": Tiny("BloomConfig", sizes={**_BLOOM_SIZES, "hidden_size": 96, "n_head": 6}),  # heads: no power of two
    "mpt-odd": Tiny("MptConfig", sizes={**_MPT_SIZES, "d_model": 96, "n_heads": 6}),
    "hunyuan-alpha": Tiny(
        "HunYuanDenseV1Config", {"head_dim": 16, **_rope(rope_type="dynamic", alpha=50.0, factor=1.0)}
    ),
    "deepseek2-groups": Tiny(
        "DeepseekV2Config",
        {
            **_MLA,
            **MOE,
            "attention_bias": True,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
        },
        _EQUAL_HEADS,
    ),
    "deepseek3-halves": Tiny(
        "DeepseekV3Config", {**_DEEPSEEK, **_MLA, "q_lora_rank": None, "rope_interleave": False}, _EQUAL_HEADS
    ),
    "glm4_moe_lite": Tiny("Glm4MoeLiteConfig", {**_DEEPSEEK, **_MLA}, _EQUAL_HEADS),
    "llama4-plain": Tiny(
        "Llama4TextConfig",
        {**_LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False, "num_experts_per_tok": 2},
    ),
    "qwen2_moe-sparse": Tiny(
        "Qwen2MoeConfig",
        {
            **MOE,
            "num_experts": 6,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 8,
        },
    ),
    "glm4_moe-plain": Tiny("Glm4MoeConfig", {**_DEEPSEEK, "n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "arcee": Tiny("ArceeConfig"),
    "cohere-norms": Tiny("CohereConfig", {"use_qk_norm": True, "logit_scale": 2.0}),
    "cwm": Tiny(
        "CwmConfig", {"head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    "ernie": Tiny("Ernie4_5Config", {"head_dim": 16, "use_bias": True}),
    "exaone4-whole": Tiny("Exaone4Config", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "falcon-new": Tiny(
        "FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}, _EQUAL_HEADS
    ),
    "falcon-one-norm": Tiny(
        "FalconConfig",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        _EQUAL_HEADS,
    ),
    "falcon-in-turn": Tiny("FalconConfig", {"parallel_attn": False, "multi_query": False}, _EQUAL_HEADS),
    "gpt_bigcode-heads": Tiny("GPTBigCodeConfig", {"multi_query": False}, _GPT_SIZES),
    "gpt_neox-in-turn": Tiny("GPTNeoXConfig", {"use_parallel_residual": False, "attention_bias": False}, _EQUAL_HEADS),
    "helium": Tiny("HeliumConfig", {"head_dim": 16}),
    "jais2": Tiny("Jais2Config", {"head_dim": 16}),
    "opt-untied": Tiny(
        "OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": HIDDEN_SIZE, "enable_bias": False}, _EQUAL_HEADS
    ),
    "persimmon-plain": Tiny("PersimmonConfig", {"qk_layernorm": False}, _EQUAL_HEADS),
    "phi-norms": Tiny("PhiConfig", {"qk_layernorm": True}),
    "seed_oss": Tiny("SeedOssConfig", {"head_dim": 16, "attention_out_bias": True}),
    "smollm3": Tiny("SmolLM3Config", {"num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    "stablelm-parallel": Tiny("StableLmConfig", {"use_parallel_residual": True}),
    "llama-biases": Tiny("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama-linear": Tiny("LlamaConfig", _rope(rope_type="linear", factor=2.0)),
    "llama-llama3": Tiny(
        "LlamaConfig",
        _rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-yarn": Tiny("LlamaConfig", _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral-full": Tiny("MistralConfig", {"sliding_window": None, "head_dim": 24}),
    "qwen2-window": Tiny("Qwen2Config", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "gpt2-scaled": Tiny(
        "GPT2Config",
        {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False, "activation_function": "relu"},
        sizes={"vocab_size": VOCAB_SIZE, "n_embd": HIDDEN_SIZE, "n_layer": 2, "n_head": 4, "n_positions": 128},
    ),
}


def make_tiny(name: str, folder: Path, change: Callable[[torch.nn.Module], None] | None = None) -> torch.nn.Module:
    """Saves a tiny checkpoint in `folder` and returns the model, f32, in evaluation mode, with eager attention."""
    tiny = (FAMILIES | VARIANTS)[name]
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(
        tiny.config(), dtype=torch.float32, attn_implementation="eager"
    )
    randomize(model)
    if change is not None:
        change(model)
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Weights large enough that every part of the model shows in its logits, biases and norms included."""
    kind = type(model).__name__.lower()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3:  # experts: matrices of (out, in)
            parameter.normal_(0.0, 1.5 * parameter.shape[2] ** -0.5)
        elif "zamba2" in kind and ("embed" in name or "adapter_list" in name):
            # Small, as its head is always the embedding, and sharp scores would enlarge what is rounded.
            parameter.normal_(0.0, 0.2 if "embed" in name else 0.5 * parameter.shape[1] ** -0.5)
        elif parameter.ndim == 2:
            fan_in = parameter.shape[0] if "gpt2" in kind else parameter.shape[1]
            parameter.normal_(0.0, 1.0 if "embed" in name or "wte" in name else 1.5 * fan_in**-0.5)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(("correction_bias", "layer_scalar")):
            buffer.add_(torch.randn_like(buffer) * 0.2)
