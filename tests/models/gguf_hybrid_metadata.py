"""The metadata of GGUF files of models with recurrent layers, as llama.cpp's converter writes it."""

from collections.abc import Callable
from typing import Any

import gguf

Write = Callable[[gguf.GGUFWriter, Any], None]


def _state_space(writer: gguf.GGUFWriter, *, conv: int, state: int, heads: int, width: int, groups: int = 0) -> None:
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(width)
    if groups:
        writer.add_ssm_group_count(groups)


def _mamba2_of_bamba(writer: gguf.GGUFWriter, config: Any) -> None:
    _state_space(
        writer,
        conv=config.mamba_d_conv,
        state=config.mamba_d_state,
        heads=config.mamba_n_heads,
        width=getattr(config, "mamba_d_ssm", None) or config.mamba_expand * config.hidden_size,
        groups=config.mamba_n_groups,
    )


def _attention(writer: gguf.GGUFWriter, config: Any, attends: list[bool] | None = None) -> None:
    """attends: which layers have KV heads; None for all."""
    heads = config.num_key_value_heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(heads if attends is None else [heads if each else 0 for each in attends])


def _attends(config: Any) -> list[bool]:
    return ["attention" in kind and "linear" not in kind for kind in config.layer_types]


def _experts(writer: gguf.GGUFWriter, config: Any) -> None:
    count = getattr(config, "num_local_experts", None) or config.num_experts
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)


def _mamba2(writer: gguf.GGUFWriter, config: Any) -> None:
    """Writes zero for what such models do not have."""
    writer.add_head_count(0)
    writer.add_feed_forward_length(0)
    width = config.num_heads * config.head_dim
    _state_space(
        writer,
        conv=config.conv_kernel,
        state=config.state_size,
        heads=config.num_heads,
        width=width,
        groups=config.n_groups,
    )
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)


def _jamba(writer: gguf.GGUFWriter, config: Any) -> None:
    step, first = config.attn_layer_period, config.attn_layer_offset
    _attention(writer, config, [layer % step == first for layer in range(config.num_hidden_layers)])
    width = config.mamba_expand * config.hidden_size
    _state_space(writer, conv=config.mamba_d_conv, state=config.mamba_d_state, heads=config.mamba_dt_rank, width=width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _experts(writer, config)


def _granite(writer: gguf.GGUFWriter, config: Any) -> None:
    is_bamba = config.model_type == "bamba"
    attends = _attends(config)
    _attention(writer, config, attends)
    _mamba2_of_bamba(writer, config)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_scaling_finetuned(is_bamba)
    if is_bamba:
        head_dim = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_dim * config.rope_parameters["partial_rotary_factor"]))
        return
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    _experts(writer, config)


def _nemotron_h(writer: gguf.GGUFWriter, config: Any) -> None:
    kinds = config.layers_block_type
    has_experts = "moe" in kinds
    width = config.moe_intermediate_size if has_experts else config.intermediate_size
    _attention(writer, config, ["full_attention" in kind for kind in kinds])
    writer.add_feed_forward_length([width if kind in ("moe", "mlp") else 0 for kind in kinds])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    heads = config.mamba_num_heads
    inner, state = heads * config.mamba_head_dim, config.ssm_state_size
    _state_space(writer, conv=config.conv_kernel, state=state, heads=heads, width=inner, groups=config.n_groups)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    if has_experts:
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.moe_latent_size:
        writer.add_uint32("nemotron_h_moe.moe_latent_size", config.moe_latent_size)


def _falcon_h1(writer: gguf.GGUFWriter, config: Any) -> None:
    _attention(writer, config)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    _mamba2_of_bamba(writer, config)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _qwen3next(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if (width := getattr(config, "intermediate_size", None)) is not None:
        writer.add_feed_forward_length(width)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    heads = config.linear_num_value_heads
    _state_space(
        writer,
        conv=config.linear_conv_kernel_dim,
        state=config.linear_key_head_dim,
        heads=heads,
        width=heads * config.linear_value_head_dim,
        groups=config.linear_num_key_heads,
    )
    writer.add_uint32(f"{writer.arch}.full_attention_interval", 4)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    if writer.arch == "qwen35":
        return
    _experts(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


HYBRIDS: dict[str, Write] = {
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granite,
    "jamba": _jamba,
    "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _qwen3next),
}
