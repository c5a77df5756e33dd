"""Tiny checkpoints in the forms of quantization methods: a scheme packs each linear map and says what it means."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.models.stored.e2m1 import mxfp4
from tests.models.tiny import make_tiny

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]  # tensors by suffix, and the floats that the method makes of them


@dataclass(frozen=True)
class Scheme:
    """config: the quantization_config. storage: how our reader calls the matrices. pack: packs f32 [N, K], where K is
    a multiple of `unit`."""

    config: dict[str, Any]
    storage: str
    pack: Callable[[torch.Tensor], Packed]
    unit: int = 1


def write_mxfp4(name: str, folder: Path) -> torch.nn.Module:
    """Writes model `name` with its stacks of experts as gpt-oss has them; returns it with the values they stand for."""
    model = make_tiny(name, folder)
    tensors: dict[str, torch.Tensor] = dict(model.state_dict())
    for key, parameter in model.named_parameters():
        if parameter.ndim == 3:
            blocks, scales, values = mxfp4(parameter.detach().transpose(1, 2))
            parameter.data = values.transpose(1, 2)
            del tensors[key]
            tensors |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    _save(tensors, folder, {"quant_method": "mxfp4"})
    return model


def write_experts_apart(folder: Path, scheme: Scheme) -> torch.nn.Module:
    """Writes gpt-oss with the linear maps of its experts apart and packed, as llm-compressor does; returns it with
    their values."""
    model = make_tiny("gpt-oss", folder)
    tensors: dict[str, torch.Tensor] = dict(model.state_dict())
    for key, stack in model.named_parameters():
        if ".experts." not in key:
            continue
        where, _, name = key.rpartition(".")
        of_experts = tensors.pop(key)
        names = ("gate_proj", "up_proj") if name.startswith("gate_up") else ("down_proj",)
        for expert, part in itertools.product(range(len(stack)), range(len(names))):
            module, mine = f"{where}.{expert}.{names[part]}", of_experts[expert][..., part :: len(names)]
            if name.endswith("_bias"):
                tensors[f"{module}.bias"] = mine
                continue
            parts, values = scheme.pack(mine.T.contiguous())
            stack.data[expert][:, part :: len(names)] = values.T
            tensors |= {f"{module}.{suffix}": each for suffix, each in parts.items()}
    _save(tensors, folder, scheme.config)
    return model


def write_stored(name: str, folder: Path, scheme: Scheme) -> torch.nn.Module:
    """Writes model `name` with all linear maps packed that can be, but the head; returns it with their values."""
    model = make_tiny(name, folder)
    tensors: dict[str, torch.Tensor] = dict(model.state_dict())
    for module, each in model.named_modules():
        if isinstance(each, torch.nn.Linear) and module != "lm_head" and each.in_features % scheme.unit == 0:
            parts, values = scheme.pack(each.weight.detach())
            each.weight.data = values.float()
            del tensors[f"{module}.weight"]
            tensors |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
    _save(tensors, folder, scheme.config)
    return model


def _save(tensors: dict[str, torch.Tensor], folder: Path, quantization: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, folder / "model.safetensors")
