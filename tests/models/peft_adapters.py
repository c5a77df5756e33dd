"""Adapters that peft itself makes of tiny models, with random numbers in all that it trains."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model


@torch.no_grad()
def peft_adapter(model: torch.nn.Module, folder: Path, seed: int = 0, **config: Any) -> PeftModel:
    """Saves an adapter in `folder`, and returns the copy of the model that computes with it. config: of LoraConfig."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what peft and transformers change of each other
        made = get_peft_model(copy.deepcopy(model), LoraConfig(**({"r": 4, "lora_alpha": 6} | config)))
        _fill(made, torch.Generator().manual_seed(seed))
        made.save_pretrained(str(folder))
    return made.eval()


def _fill(made: torch.nn.Module, generator: torch.Generator) -> None:
    """Puts random numbers into what is trained."""
    for name, parameter in made.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if "lora_magnitude" in name:
            parameter *= 1 + 0.3 * noise
        elif "lora_" in name:
            parameter.copy_(0.3 * noise)
        else:  # a bias or a matrix of its own
            parameter += 0.1 * noise
