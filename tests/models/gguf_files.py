"""GGUF files of tiny models, written with the gguf package under llama.cpp's conventions.

The gguf package quantizes only the plain block types. Tensors of k-quants and IQ types are random blocks of about the
right size instead; either way `dequantized` holds what the file says, for the oracle to compute with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.models.gguf_metadata import write_metadata, write_rope_factors
from tests.models.gguf_parts import column_order, factor, file_shape, row_order, stored_parts
from tests.models.tiny import FAMILIES, randomize

GgmlType = gguf.GGMLQuantizationType
KindOf = Callable[[str], GgmlType]  # of a matrix, by its GGUF name

ARCHITECTURES = {
    "deepseek3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
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
    "falcon_h1": "falcon-h1",
    "bamba": "granitehybrid",
    "granitemoehybrid": "granitehybrid",
    "nemotron_h": "nemotron_h_moe",
    "nemotron_h-dense": "nemotron_h",
    "gpt_bigcode": "starcoder",
    "glm": "chatglm",
    "kimi_linear": "kimi-linear",
    "olmo3": "olmo2",
    "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
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
    "altup",
    "ssm_ba",
)  # f32 in every file, without dimensions of one
_NORM_PLUS_ONE = ("gemma", "gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe")
_SCALE_BYTES = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0, None, 0)),
    "IQ1_M": (48, None, 0),  # in the highest bits of four words
}


def architecture_of(name: str) -> str:
    """The GGUF architecture of a tiny model."""
    family = name if name in FAMILIES or name in ARCHITECTURES else name.split("-", maxsplit=1)[0]
    return ARCHITECTURES.get(family, family)


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
    write_metadata(writer, config, architecture)
    number = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    state = model.state_dict()
    for name, tensor in stored_parts(config, architecture, state):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = stored_name(names, name)
        values = to_stored(config, architecture, name, tensor.numpy())
        raw, kind = add_tensor(writer, config, stored, values, kind_of)
        exact = gguf.quants.dequantize(raw, kind).reshape(values.shape)
        tensor.copy_(torch.from_numpy(_from_stored(config, architecture, name, exact).copy()))
    write_rope_factors(writer, config, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(state)
    return GgufFile(path, model.eval())


def add_tensor(
    writer: gguf.GGUFWriter, config: Any, stored: str, values: np.ndarray, kind_of: KindOf
) -> tuple[np.ndarray, GgmlType]:
    """Adds a tensor, in f32 if every file has it so; returns what was added, and its type."""
    is_plain = values.ndim == 1 or any(part in stored for part in _PLAIN)
    kind = GgmlType.F32 if is_plain else kind_of(stored)
    plain = values.squeeze() if is_plain else values
    shape = file_shape(config, writer.arch, stored)
    raw = quantize(plain if shape is None else plain.reshape(shape), kind)
    writer.add_tensor(stored, raw, raw_dtype=kind)
    return raw, kind


def stored_name(names: gguf.TensorNameMap, name: str) -> str:
    if name.startswith("blk."):
        return name
    if name.endswith(("e_score_correction_bias", ".expert_bias")):
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    if name.endswith("self_attn.sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    name = name.replace(".dt_bias", ".dt_proj.bias")
    inner = name.removeprefix("model.")
    tried = (name, name.removeprefix("transformer."), f"backbone.{inner}", f"model.{inner}")
    found = next(filter(None, (names.get_name(each, try_suffixes=(".weight", ".bias")) for each in tried)), None)
    assert found is not None, name
    return found


def quantize(values: np.ndarray, kind: GgmlType) -> np.ndarray:
    """Bytes (or elements) of `values`, or random blocks of their spread. A stack is a matrix of all rows."""
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
        if kind is GgmlType.IQ1_M:
            _put_apart(raw[..., scale_at:].view("<u2"), scale)
        else:
            _put(raw, scale_at, scale)
        if minimum_at is not None:
            _put(raw, minimum_at, scale * ratio)
        return gguf.quants.dequantize(raw.reshape(len(raw), -1), kind)

    dequantized(values.std() / max(float(dequantized(1.0).std()), 1e-6))
    return raw.reshape(len(raw), -1)


def _put(raw: np.ndarray, at: int, value: float) -> None:
    raw[..., at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _put_apart(words: np.ndarray, value: float) -> None:
    bits = np.frombuffer(np.float16(value).tobytes(), "<u2")[0]
    words[...] = words & 0x0FFF | (bits >> np.arange(0, 16, 4) & 15).astype(np.uint16) << 12


def to_stored(config: Any, architecture: str, name: str, values: np.ndarray) -> np.ndarray:
    if (order := row_order(config, architecture, name, len(values))) is not None:
        values = values[order]
    if (columns := column_order(config, architecture, name)) is not None:
        values = values[:, columns]
    if (times := factor(config, architecture, name)) is not None:
        return values * np.float32(times)
    if _includes_one(architecture, name):
        return values + 1
    if name.endswith("A_log"):
        return -np.exp(values)
    return values.T if _is_conv1d(architecture, name, values) else values


def _from_stored(config: Any, architecture: str, name: str, values: np.ndarray) -> np.ndarray:
    if (order := row_order(config, architecture, name, len(values))) is not None:
        values = values[np.argsort(order)]
    if (columns := column_order(config, architecture, name)) is not None:
        values = values[:, np.argsort(columns)]
    if (times := factor(config, architecture, name)) is not None:
        return values / np.float32(times)
    if _includes_one(architecture, name):
        return values - 1
    if name.endswith("A_log"):
        return np.log(-values)
    return values.T if _is_conv1d(architecture, name, values) else values


def _includes_one(architecture: str, name: str) -> bool:
    is_norm = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    return architecture in _NORM_PLUS_ONE and is_norm


def _is_conv1d(architecture: str, name: str, values: np.ndarray) -> bool:
    return architecture == "gpt2" and values.ndim == 2 and ".c_" in name
