"""The metadata of GGUF files of tiny models, as llama.cpp's converter writes it."""

from typing import Any

import gguf
import numpy as np
import torch

from tests.models.gguf_hybrid_metadata import HYBRIDS
from tests.models.gguf_more_metadata import MORE

_PARTIAL = (
    "llama", "gptneox", "minimax-m2", "phi3", "glm4moe", "glm4", "nemotron", "phi2", "stablelm", "command-r", "cohere2",
    "chatglm", "phimoe", "mistral3", "jais2",
)  # fmt: skip
_EPSILONS = ("layer_norm_eps", "norm_epsilon", "norm_eps")  # of layer norms


def write_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(getattr(config, "max_position_embeddings", 1 << 20))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if architecture in HYBRIDS:
        HYBRIDS[architecture](writer, config)
        return
    if architecture == "mamba":
        _write_mamba(writer, config)
        return
    writer.add_head_count(config.num_attention_heads)
    if architecture in ("gpt2", "starcoder", "bloom", "mpt", "falcon"):
        _write_older(writer, config, architecture)
        return
    if architecture in ("lfm2", "lfm2moe"):
        _write_lfm2(writer, config)
        return
    if architecture in ("gemma3n", "gemma4"):
        _write_gemma(writer, config, architecture)
        return
    writer.add_feed_forward_length(getattr(config, "intermediate_size_mlp", config.intermediate_size))
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
    else:
        stated = (getattr(config, name) for name in _EPSILONS if hasattr(config, name))
        writer.add_layer_norm_eps(next(stated, 1e-5))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if architecture in ("deepseek2", "minicpm3"):
        _write_latent(writer, config, architecture)
    else:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = getattr(config, "rope_parameters", None)
    rope = rope.get("full_attention", rope) if rope else None
    if rope is not None:
        writer.add_rope_freq_base(rope["rope_theta"])
    if getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_topk", None):
        _write_experts(writer, config)
    if architecture in _PARTIAL:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope is not None and rope["rope_type"] == "yarn":
        _write_yarn(writer, rope)
    if architecture in ("gemma2", "gemma3", "cohere2", "exaone4", "starcoder2", "gpt-oss", "afmoe"):
        writer.add_sliding_window(config.sliding_window)
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
    if architecture in ("granite", "granitemoe", "minicpm"):
        if architecture != "minicpm":
            writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture in ("stablelm", "gptneox"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if architecture in MORE:
        MORE[architecture](writer, config)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _write_yarn(writer: gguf.GGUFWriter, rope: Any) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _write_gemma(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    ropes = config.rope_parameters
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windowed)
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if architecture == "gemma3n":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_altup_active_idx(config.altup_active_idx)
        writer.add_altup_num_inputs(config.altup_num_inputs)
        shares = torch.tensor(config.activation_sparsity_pattern)
        writer.add_activation_sparsity_scale(torch.distributions.Normal(0, 1).icdf(shares).tolist())
        return
    own = config.num_hidden_layers - config.num_kv_shared_layers
    width, double = config.intermediate_size, config.use_double_wide_mlp
    lists = [width * (2 if double and layer >= own else 1) for layer in range(config.num_hidden_layers)]
    writer.add_feed_forward_length(lists if double else width)
    sizes = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    writer.add_head_count_kv([size.num_key_value_heads for size in sizes])
    full = sizes[windowed.index(False)].head_dim
    writer.add_key_length(full)
    writer.add_key_length_swa(sizes[windowed.index(True)].head_dim)
    writer.add_rope_dimension_count(full)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    rotated = int(full * ropes["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (full // 2 - rotated), np.float32))


def _write_older(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """Writes what little the files of the first families have."""
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    if architecture == "falcon":
        is_one = config.multi_query and not config.new_decoder_architecture
        writer.add_head_count_kv(1 if is_one else config.num_kv_heads)
    if architecture == "mpt":
        writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)


def _write_latent(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    if architecture == "minicpm3":
        writer.add_key_length(key)
        return
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(key)
    writer.add_value_length_mla(config.v_head_dim)
    if (weight := config.rope_parameters.get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * weight)


def _write_mamba(writer: gguf.GGUFWriter, config: Any) -> None:
    """Writes what llama.cpp's converter does: zero for what such models do not have."""
    writer.add_head_count(0)
    writer.add_feed_forward_length(0)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_ssm_dt_b_c_rms(config.model_type == "falcon_mamba")


def _write_lfm2(writer: gguf.GGUFWriter, config: Any) -> None:
    width, multiple = config.intermediate_size, getattr(config, "block_multiple_of", None)
    writer.add_feed_forward_length(width if multiple is None else -(-(2 * width // 3) // multiple) * multiple)
    kv_heads = config.num_key_value_heads
    writer.add_head_count_kv([kv_heads if kind == "full_attention" else 0 for kind in config.layer_types])
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if multiple is None:  # the MoE, whose width is as stated
        _write_experts(writer, config)


def _write_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    writer.add_expert_count(next(getattr(config, name) for name in counts if hasattr(config, name)))
    writer.add_expert_used_count(getattr(config, "moe_topk", None) or config.num_experts_per_tok)
    numbers = {
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "shared_expert_intermediate_size": writer.add_expert_shared_feed_forward_length,
        "n_shared_experts": writer.add_expert_shared_count,
        "moe_num_shared_experts": writer.add_expert_shared_count,
        "routed_scaling_factor": writer.add_expert_weights_scale,
        "first_k_dense_replace": writer.add_leading_dense_block_count,
        "moe_layer_start_index": writer.add_leading_dense_block_count,
        "num_dense_layers": writer.add_leading_dense_block_count,
        "n_group": writer.add_expert_group_count,
        "topk_group": writer.add_expert_group_used_count,
        "num_shared_experts": writer.add_expert_shared_count,
        "interleave_moe_layer_step": writer.add_interleave_moe_layer_step,
        "route_scale": writer.add_expert_weights_scale,
    }
    for name, add in numbers.items():
        if getattr(config, name, None) is not None:
            add(getattr(config, name))
    if hasattr(config, "routed_scaling_factor"):
        writer.add_expert_weights_norm(bool(config.norm_topk_prob))
        is_softmax = config.model_type == "deepseek_v2"
        kinds = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(kinds.SOFTMAX if is_softmax else kinds.SIGMOID)
    if config.model_type == "hunyuan_v1_moe":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    if config.model_type == "llama4_text":
        writer.add_expert_feed_forward_length(config.intermediate_size)


def write_rope_factors(writer: gguf.GGUFWriter, config: Any, model: torch.nn.Module) -> None:
    """Writes them as llama.cpp's converter: llama3 scaling as a divisor per frequency, longrope as two vectors."""
    rope = getattr(config, "rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        scaled = model.model.rotary_emb.inv_freq.numpy()
        plain = rope["rope_theta"] ** (-np.arange(len(scaled)) / len(scaled))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    if rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        factor = rope.get("short_mscale") or model.model.rotary_emb.attention_scaling
        writer.add_rope_scaling_attn_factors(factor)
        for kind in ("short", "long"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.asarray(rope[f"{kind}_factor"], np.float32))
