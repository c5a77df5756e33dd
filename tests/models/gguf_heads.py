"""GGUF files of tiny models with the layer that drafts tokens, as llama.cpp's converter writes it."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType as GgmlType

from tests.models.gguf_files import add_tensor, architecture_of, stored_name, to_stored
from tests.models.gguf_metadata import write_metadata
from tests.models.gguf_parts import stored_parts
from tests.models.tiny_heads import TinyHead


def write_head_gguf(head: TinyHead, path: Path) -> None:
    """Writes the model of a head, and the head as a layer after the model's last, in f32."""
    config, architecture = head.base.config, architecture_of(head.tiny.name)
    count = config.num_hidden_layers
    writer = gguf.GGUFWriter(path, architecture)
    write_metadata(writer, config, architecture)
    writer.kv_data[0].pop(f"{architecture}.block_count")
    writer.add_block_count(count + 1)
    writer.add_uint32(f"{architecture}.nextn_predict_layers", 1)
    number = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, count + 1)
    for name, tensor in stored_parts(config, architecture, head.base.state_dict()):
        values = to_stored(config, architecture, name, tensor.numpy())
        add_tensor(writer, config, stored_name(names, name), values, lambda _: GgmlType.F32)
    for stored, name, tensor in _of_head(head, architecture, names):
        values = to_stored(config, architecture, name, tensor.numpy())
        add_tensor(writer, config, stored.replace("blk.0.", f"blk.{count}."), values, lambda _: GgmlType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _of_head(head: TinyHead, architecture: str, names: gguf.TensorNameMap) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields the stored name as in layer 0, the Hugging Face name, and the values."""
    tiny, layer = head.tiny, head.layer
    own = {"eh_proj": tiny.fc, "enorm": tiny.embed_norm, "hnorm": tiny.state_norm}
    for part, name in own.items():
        assert name is not None
        norm = "norm.weight" if tiny.less_one and part != "eh_proj" else "plain.weight"
        yield f"blk.0.nextn.{part}.weight", norm, head.tensors[name]
    for name, tensor in stored_parts(layer.config, architecture, layer.state_dict()):
        if name == "model.norm.weight":
            yield "blk.0.nextn.shared_head_norm.weight", name, tensor
        elif ".layers." in name or name.startswith("blk."):
            yield stored_name(names, name), name, tensor
