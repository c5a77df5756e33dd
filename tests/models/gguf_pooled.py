"""GGUF files of tiny models that pool, written with the gguf package as llama.cpp's converter writes them."""

import re
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file

from tests.models.tiny_pooled import POOLED, make_pooled

GGUF_POOLED: Final = {  # the architecture of each
    "bert-mean": "bert",
    "roberta-cls": "bert",
    "roberta-classify": "bert",
    "distilbert-mean": "bert",
    "nomic-mean": "nomic-bert",
    "modernbert-mean": "modern-bert",
    "modernbert-classify": "modern-bert",
    "gemma-mean": "gemma-embedding",
    "qwen3-last": "qwen3",
}
_KINDS: Final = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS, "last": gguf.PoolingType.LAST}
_LEFT_OUT: Final = re.compile(r"pooler\.|position_ids")


def _first_position(config: Any) -> int:
    """Rows of the table before that of the first token."""
    return 2 if config.model_type == "roberta" else 0


def write_pooled(name: str, folder: Path) -> tuple[Path, torch.nn.Module]:
    """Writes the model's file in f32; returns it and transformers' model."""
    model, architecture = make_pooled(name, folder), GGUF_POOLED[name]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, POOLED[name].kind, POOLED[name].task, model.config)
    number = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, 3)
    for stored, tensor in load_file(folder / "model.safetensors").items():
        if not _LEFT_OUT.search(stored):
            found, values = _converted(names, architecture, stored, tensor)
            if found == "position_embd.weight":
                values = values[_first_position(model.config) :]
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def _converted(names: gguf.TensorNameMap, architecture: str, stored: str, tensor: np.ndarray) -> tuple[str, np.ndarray]:
    bare = re.sub(r"^(bert|roberta|distilbert|nomic_bert|model)\.", "", stored)
    if architecture == "modern-bert" and bare.startswith("classifier."):
        bare = bare.replace("classifier.", "classifier.out_proj.")
    tried = (bare, f"model.{bare}")
    found = next(filter(None, (names.get_name(each, try_suffixes=(".weight", ".bias")) for each in tried)), None)
    assert found is not None, stored
    if architecture == "gemma-embedding" and found.endswith("norm.weight"):
        tensor = tensor + np.float32(1)
    return found, tensor


def _write_metadata(writer: gguf.GGUFWriter, kind: str, task: str, config: Any) -> None:
    writer.add_context_length(66 - _first_position(config))
    writer.add_embedding_length(48)
    writer.add_block_count(3)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_causal_attention(False)
    if task == "embed":
        writer.add_pooling_type(_KINDS[kind])
    else:
        writer.add_classifier_output_labels([config.id2label[number] for number in sorted(config.id2label)])
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or getattr(config, "norm_eps", 1e-12))
    _write_rotation(writer, config)


def _write_rotation(writer: gguf.GGUFWriter, config: Any) -> None:
    ropes = getattr(config, "rope_parameters", None)
    if ropes is None:
        return
    full = ropes.get("full_attention", ropes)
    writer.add_rope_freq_base(full["rope_theta"])
    if "sliding_attention" in ropes:
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if config.model_type == "modernbert":
        writer.add_sliding_window(config.local_attention)
        writer.add_uint32("modern-bert.classifier.pooling_type", _KINDS[config.classifier_pooling])
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(12)  # that of both sides, before transformers halves it
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
