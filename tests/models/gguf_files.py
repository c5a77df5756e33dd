"""GGUF files of tiny models, written with the gguf package under llama.cpp's conventions.

The gguf package quantizes only the plain block types. Tensors of k-quants are random blocks of about the right size
instead; either way `dequantized` holds what the file says, for the oracle to compute with.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.models.tiny import randomize

GgmlType = gguf.GGMLQuantizationType
KindOf = Callable[[str], GgmlType]  # of a matrix, by its GGUF name

ARCHITECTURES = {
    "cohere": "command-r",
    "ernie": "ernie4_5",
    "stablelm-parallel": "stablelm",
    "hunyuan": "hunyuan-dense",
    "phi": "phi2",
    "mixtral": "llama",
    "minimax_m2": "minimax-m2",
    "gpt_neox": "gptneox",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "glm4_moe": "glm4moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "lfm2_moe": "lfm2moe",
    "falcon_mamba": "mamba",
}  # of families whose names differ
_PLAIN = (
    "exps.bias",
    "position",
    "ffn_gate_inp",
    "exp_probs_b",
    "shortconv.conv",
    "ssm_conv1d",
    "ssm_dt",
    "ssm_a",
)  # f32 in every file, without dimensions of one
_NORM_PLUS_ONE = ("gemma", "gemma2", "gemma3", "nemotron")
_PERMUTED = ("llama", "arcee", "granite", "smollm3")
_PARTIAL = (
    "llama",
    "gptneox",
    "minimax-m2",
    "phi3",
    "glm4moe",
    "glm4",
    "nemotron",
    "phi2",
    "stablelm",
    "command-r",
    "cohere2",
)
_EPSILONS = ("layer_norm_eps", "norm_epsilon", "norm_eps")  # of layer norms
_SCALE_BYTES = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
}


@dataclass(frozen=True)
class GgufFile:
    path: Path
    oracle: torch.nn.Module  # transformers' model with the file's weights, dequantized to f32


def write_gguf(config: transformers.PretrainedConfig, architecture: str, path: Path, kind_of: KindOf) -> GgufFile:
    """A random model of `config` whose matrices have the types that `kind_of` says."""
    torch.manual_seed(len(str(config)))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    number = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    state = model.state_dict()
    for name, tensor in _stored_parts(state):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored_name = _stored_name(names, name)
        values = _to_stored(config, architecture, name, tensor.numpy())
        is_plain = values.ndim == 1 or any(part in stored_name for part in _PLAIN)
        kind = GgmlType.F32 if is_plain else kind_of(stored_name)
        raw = quantize(values.squeeze() if is_plain else values, kind)
        writer.add_tensor(stored_name, raw, raw_dtype=kind)
        exact = gguf.quants.dequantize(raw, kind).reshape(values.shape)
        tensor.copy_(torch.from_numpy(_from_stored(config, architecture, name, exact).copy()))
    _write_rope_factors(writer, config, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(state)
    return GgufFile(path, model.eval())


def _stored_parts(state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, with the joined stack of gates and ups as the two that files have."""
    for name, tensor in state.items():
        if tensor.ndim > 1 and "sinks" not in name and f"{name}_bias" in state:  # gpt-oss: (in, out), in turn
            yield from _in_turn(name, tensor.transpose(1, 2))
        elif name.endswith("proj_bias"):
            yield from _in_turn(name.removesuffix("_bias"), tensor, "bias")
        elif name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True):
                yield name.replace("gate_up_proj", f"{part}.weight"), half
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", tensor
        else:
            yield name, tensor


def _in_turn(name: str, rows: torch.Tensor, suffix: str = "weight") -> Iterator[tuple[str, torch.Tensor]]:
    """A stack, or its gates and ups whose rows take turns."""
    if not name.endswith("gate_up_proj"):
        yield f"{name}.{suffix}", rows
        return
    for at, part in enumerate(("gate_proj", "up_proj")):
        yield name.replace("gate_up_proj", f"{part}.{suffix}"), rows[:, at::2]


def _stored_name(names: gguf.TensorNameMap, name: str) -> str:
    if name.endswith(("e_score_correction_bias", ".expert_bias")):
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    if name.endswith("self_attn.sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def quantize(values: np.ndarray, kind: GgmlType) -> np.ndarray:
    """Bytes (or elements) of `values`; random blocks of their spread for k-quants. A stack is a matrix of all rows."""
    if values.ndim == 3:
        rows = quantize(values.reshape(-1, values.shape[2]), kind)
        return rows.reshape(*values.shape[:2], -1)
    if kind.name not in _SCALE_BYTES:
        return gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind)
    scale_at, minimum_at, ratio = _SCALE_BYTES[kind.name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(values.size)
    raw = generator.integers(0, 256, (values.shape[0], values.shape[1] // block, size), dtype=np.uint8)

    def dequantized(scale: float) -> np.ndarray:
        _put(raw, scale_at, scale)
        if minimum_at is not None:
            _put(raw, minimum_at, scale * ratio)
        return gguf.quants.dequantize(raw.reshape(len(raw), -1), kind)

    dequantized(values.std() / max(float(dequantized(1.0).std()), 1e-6))
    return raw.reshape(len(raw), -1)


def _put(raw: np.ndarray, at: int, value: float) -> None:
    raw[..., at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _to_stored(config: Any, architecture: str, name: str, values: np.ndarray) -> np.ndarray:
    if architecture == "gptneox" and ".query_key_value." in name:  # all queries, then all keys, then all values
        return values.reshape(config.num_attention_heads, 3, -1).swapaxes(0, 1).reshape(values.shape)
    if architecture in _PERMUTED and (heads := _permuted_heads(config, name)):
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture in _NORM_PLUS_ONE and name.endswith("norm.weight"):
        return values + 1
    if name.endswith("A_log"):
        return -np.exp(values)
    return values.T if _is_conv1d(architecture, name, values) else values


def _from_stored(config: Any, architecture: str, name: str, values: np.ndarray) -> np.ndarray:
    if architecture == "gptneox" and ".query_key_value." in name:
        return values.reshape(3, config.num_attention_heads, -1).swapaxes(0, 1).reshape(values.shape)
    if architecture in _PERMUTED and (heads := _permuted_heads(config, name)):
        return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture in _NORM_PLUS_ONE and name.endswith("norm.weight"):
        return values - 1
    if name.endswith("A_log"):
        return np.log(-values)
    return values.T if _is_conv1d(architecture, name, values) else values


def _permuted_heads(config: Any, name: str) -> int:
    if ".q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".k_proj." in name else 0


def _is_conv1d(architecture: str, name: str, values: np.ndarray) -> bool:
    return architecture == "gpt2" and values.ndim == 2 and ".c_" in name


def _write_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(getattr(config, "max_position_embeddings", 1 << 20))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if architecture == "mamba":
        _write_mamba(writer, config)
        return
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    if architecture in ("lfm2", "lfm2moe"):
        _write_lfm2(writer, config)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
    else:
        writer.add_layer_norm_eps(next(getattr(config, name) for name in _EPSILONS if hasattr(config, name)))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if getattr(config, "num_experts_per_tok", None):
        _write_experts(writer, config)
    if architecture in _PARTIAL:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if architecture == "gpt-oss":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if architecture in ("gemma2", "gemma3", "cohere2", "exaone4", "starcoder2", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture in ("stablelm", "gptneox"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


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
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
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
    }
    for name, add in numbers.items():
        if getattr(config, name, None) is not None:
            add(getattr(config, name))
    if hasattr(config, "routed_scaling_factor"):
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _write_rope_factors(writer: gguf.GGUFWriter, config: Any, model: torch.nn.Module) -> None:
    """Writes them as llama.cpp's converter: llama3 scaling as a divisor per frequency, longrope as two vectors."""
    rope = getattr(config, "rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        scaled = model.model.rotary_emb.inv_freq.numpy()
        plain = rope["rope_theta"] ** (-np.arange(len(scaled)) / len(scaled))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    if rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
        for kind in ("short", "long"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.asarray(rope[f"{kind}_factor"], np.float32))
