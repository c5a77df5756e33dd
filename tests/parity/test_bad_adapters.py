"""Adapters that cannot be served are refused with the tensor or the setting, and the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.base.errors import ApplianceError
from appliance.checkpoint.adapter import read_adapter
from appliance.layers.adapters import adapted_weights, with_adapters
from appliance.loading.adapters import AdapterPlaces, load_adapter
from appliance.models.adapters import place_filter, trained_weights
from appliance.models.describe import describe
from tests.models.adapters import make_adapter
from tests.parity.conftest import Checkpoint

Q = "base_model.model.model.layers.0.self_attn.q_proj"
Tensors = dict[str, torch.Tensor]


def renamed(tensors: Tensors) -> Tensors:
    return {name.replace("base_model.model", "base_model.model.language_model"): each for name, each in tensors.items()}


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name]).contiguous()}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: each for key, each in tensors.items() if key != name}


def same(tensors: Tensors) -> Tensors:
    return tensors


BAD: dict[str, tuple[Callable[[Tensors], Tensors], dict[str, Any], str]] = {
    "prefix": (renamed, {}, "no place for an adapter of language_model"),
    "wrong rank": (changed(f"{Q}.lora_A.weight", lambda a: a[:3]), {}, f"{Q}: lora_B .* is no product"),
    "swapped": (changed(f"{Q}.lora_B.weight", lambda b: b.T), {}, f"{Q}: lora_B .* is no product"),
    "no B": (without(f"{Q}.lora_B.weight"), {}, "has lora_A and no lora_B"),
    "no A": (without(f"{Q}.lora_A.weight"), {}, "is no lora_A or lora_B of a pair"),
    "unknown": (lambda all_: {**all_, "x.lora_magnitude_vector": torch.ones(4)}, {}, "x.lora_magnitude_vector"),
    "another base": (changed(f"{Q}.lora_A.weight", lambda a: a[:, :-8]), {}, "the adapter is of a weight"),
    "NaN": (changed(f"{Q}.lora_A.weight", lambda a: a * float("nan")), {}, "is not finite"),
    "DoRA": (same, {"use_dora": True}, "use_dora is True"),
    "bias": (same, {"bias": "all"}, "bias is 'all'"),
    "head": (same, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "PiSSA": (same, {"init_lora_weights": "pissa"}, "a base model that was changed"),
    "kind": (same, {"peft_type": "IA3"}, "peft_type is 'IA3'"),
}


@pytest.fixture
def folder(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> Path:
    make_adapter(tiny("llama").oracle, tmp_path)
    return tmp_path


@pytest.fixture
def load(tiny: Callable[[str], Checkpoint]) -> Callable[..., object]:
    facts = tiny("llama").facts

    def read(folder: Path, max_rank: int = 4, targets: tuple[str, ...] | None = None) -> object:
        sources = trained_weights(facts, 64)
        program = with_adapters(describe(facts, 64).compiled, max_rank, place_filter(sources, targets))
        places = AdapterPlaces.of(facts, 64, adapted_weights(program), max_rank)
        return load_adapter(read_adapter(folder), places, "f32")

    return read


@pytest.mark.parametrize("name", BAD)
def test_a_bad_adapter_is_refused(name: str, folder: Path, load: Callable[..., object]) -> None:
    load(folder)
    change, config, problem = BAD[name]
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    settings = folder / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | config))
    with pytest.raises(ApplianceError, match=problem):
        load(folder)


def test_a_rank_above_the_slots_is_refused(folder: Path, load: Callable[..., object]) -> None:
    with pytest.raises(ApplianceError, match="has rank 4, and the slots are for ranks up to 2") as caught:
        load(folder, max_rank=2)
    assert caught.value.hint == "set lora.max_rank: 4"


def test_modules_that_are_no_targets_are_refused(folder: Path, load: Callable[..., object]) -> None:
    with pytest.raises(ApplianceError, match="no place for an adapter of"):
        load(folder, targets=("q_proj", "v_proj"))
