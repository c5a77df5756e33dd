"""Random LoRA adapters of tiny models as peft would save them, and the models with these merged into their weights."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

ALPHA = 12
_NEVER = ("router", "gate.", "experts", "lm_head", "embed")


def is_adapted(name: str, module: torch.nn.Module) -> bool:
    """Whether a module is a linear map of a layer, of which people train adapters."""
    is_linear = isinstance(module, torch.nn.Linear | Conv1D)
    return (
        is_linear and any(part.isdigit() for part in name.split(".")) and not any(each in f"{name}." for each in _NEVER)
    )


@torch.no_grad()
def make_adapter(
    model: torch.nn.Module,
    folder: Path,
    seed: int = 0,
    rank: int = 4,
    targets: Callable[[str], bool] = lambda _: True,
    **config: Any,
) -> torch.nn.Module:
    """Saves an adapter in `folder`, and returns a copy of the model into which it is merged.

    config: further fields of adapter_config.json; of rank_pattern and use_rslora the adapter is made accordingly.
    """
    generator = torch.Generator().manual_seed(seed)
    merged = copy.deepcopy(model)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in merged.named_modules():
        if not (is_adapted(name, module) and targets(name)):
            continue
        own = config.get("rank_pattern", {}).get(name.rpartition(".")[2], rank)
        weight = module.weight
        wide, narrow = weight.shape if isinstance(module, torch.nn.Linear) else weight.T.shape
        down, up = (torch.randn(shape, generator=generator) * 0.3 for shape in ((own, narrow), (wide, own)))
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        scale = ALPHA / (own**0.5 if config.get("use_rslora") else own)
        change = scale * up @ down
        weight += change if isinstance(module, torch.nn.Linear) else change.T
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none", "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(written | config))
    return merged
