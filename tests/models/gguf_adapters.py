"""GGUF files of adapters, as llama.cpp's convert_lora_to_gguf writes them."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

from tests.models.gguf_files import stored_name
from tests.models.gguf_parts import row_order


def gguf_adapter(folder: Path, config: Any, architecture: str, path: Path) -> None:
    """Writes the adapter that peft saved in `folder` as one GGUF file. config: that of the model."""
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    tensors: dict[str, np.ndarray] = {}
    number = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for key, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, _, end = key.removeprefix("base_model.model.").partition(".lora_")
        if not end:  # a copy of the base model's weight
            continue
        kind, values, name = end.removeprefix("embedding_")[0], tensor.numpy(), f"{module}.weight"
        order = row_order(config, architecture, name, len(values)) if kind == "B" else None
        values = values if order is None else values[order]
        values = values.T if end == "embedding_A" else values
        tensors[f"{stored_name(names, name)}.lora_{kind.lower()}"] = values
    write_adapter(path, architecture, alpha, tensors)


def write_adapter(
    path: Path, architecture: str, alpha: float, tensors: dict[str, np.ndarray], **entries: str | list[int]
) -> None:
    """Writes tensors as an adapter. entries: further metadata, with `__` for the dots of a key."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    values = {"adapter__type": "lora"} | entries
    for key, value in values.items():
        name = key.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
