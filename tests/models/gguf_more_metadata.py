"""The metadata of single architectures beyond the common keys, as llama.cpp's converter writes it."""

from typing import Any

import gguf


def _mimo2(writer: gguf.GGUFWriter, config: Any) -> None:
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    heads = (config.num_key_value_heads, 2 * config.num_key_value_heads)
    writer.add_head_count_kv([heads[each] for each in windowed])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([int(each) for each in windowed])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_value_length(config.v_head_dim)
    writer.add_float32("mimo2.attention.value_scale", config.attention_value_scale)
    writer.add_rope_dimension_count(int(config.head_dim * 0.334))


def _mistral3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_float32("mistral3.attention.temperature_scale", rope["llama_4_scaling_beta"])


def _olmo2(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.model_type == "olmo3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        writer.add_rope_freq_base_swa(500_000.0)


def _kimi_linear(writer: gguf.GGUFWriter, config: Any) -> None:
    """Files have one KV head where layers attend, and none elsewhere."""
    writer.add_head_count_kv([int(kind == "full_attention") for kind in config.layer_types])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_uint32("kimi-linear.kda.head_dim", config.linear_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


MORE = {"kimi-linear": _kimi_linear, "mimo2": _mimo2, "mistral3": _mistral3, "olmo2": _olmo2}
