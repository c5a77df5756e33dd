"""Tiny checkpoints in the forms of quantization methods: a scheme packs each linear map and says what it means."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.models.tiny import make_tiny

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]  # tensors by suffix, and the floats that the method makes of them


@dataclass(frozen=True)
class Scheme:
    """config: the quantization_config. storage: how our reader calls the matrices. pack: packs f32 [N, K]."""

    config: dict[str, Any]
    storage: str
    pack: Callable[[torch.Tensor], Packed]


def write_stored(name: str, folder: Path, scheme: Scheme) -> torch.nn.Module:
    """Writes model `name` with all linear maps but the head packed; returns it with the values that they stand for."""
    model = make_tiny(name, folder)
    tensors: dict[str, torch.Tensor] = dict(model.state_dict())
    for module, each in model.named_modules():
        if isinstance(each, torch.nn.Linear) and module != "lm_head":
            parts, values = scheme.pack(each.weight.detach())
            each.weight.data = values.float()
            del tensors[f"{module}.weight"]
            tensors |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
    model.config.quantization_config = scheme.config
    model.config.save_pretrained(folder)
    del model.config.quantization_config
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return model
