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
from appliance.layers.adapters import Wanted, with_adapters
from appliance.loading.adapters import load_adapter
from appliance.loading.base_weights import BaseWeights
from appliance.models.adapter_places import AdapterPlaces
from appliance.models.adapters import kinds_needed, place_filter, trained_weights, whole_weights
from appliance.models.describe import describe
from tests.models.adapters import make_adapter
from tests.models.tiny import VOCAB_SIZE
from tests.parity.conftest import Checkpoint

Q = "base_model.model.model.layers.0.self_attn.q_proj"
DOWN = "base_model.model.model.layers.0.mlp.down_proj"
NORM = "base_model.model.model.layers.0.input_layernorm"
Tensors = dict[str, torch.Tensor]


def renamed(tensors: Tensors) -> Tensors:
    return {name.replace("base_model.model", "base_model.model.language_model"): each for name, each in tensors.items()}


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name]).contiguous()}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: each for key, each in tensors.items() if key != name}


def without_q(tensors: Tensors) -> Tensors:
    return {key: each for key, each in tensors.items() if not key.startswith(Q)}


def same(tensors: Tensors) -> Tensors:
    return tensors


def scaled(value: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: each * value for name, each in tensors.items()}


def rank_of(rank: int) -> Callable[[Tensors], Tensors]:
    """A pair of another rank than the config states."""
    down, up = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
    return lambda all_: {**all_, down: all_[down][:rank].contiguous(), up: all_[up][:, :rank].contiguous()}


A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
HEAD = "base_model.model.lm_head.weight"
# By what is wrong: the change of the tensors, of the config, and what is said.
BAD: dict[str, tuple[Callable[[Tensors], Tensors], dict[str, Any], str]] = {
    "prefix": (renamed, {}, "no place for an adapter of language_model"),
    "wrong rank": (changed(A, lambda a: a[:3]), {}, f"{Q}: lora_B .* is no product"),
    "another rank than is said": (rank_of(3), {}, f"{A} has rank 3, and adapter_config.json says 4"),
    "swapped": (changed(B, lambda b: b.T), {}, f"{Q}: lora_B .* is no product"),
    "no B": (without(B), {}, f"{Q} has lora_A and no lora_B"),
    "no A": (without(A), {}, f"{B}' is no lora_A or lora_B of a pair"),
    "unknown": (lambda all_: {**all_, f"{Q}.lora_C": torch.ones(4)}, {}, f"{Q}.lora_C' is nothing that a LoRA"),
    "no tensors": (lambda _: {}, {}, "there is no tensor of an adapter"),
    "disjoint": (
        lambda all_: {name.replace("q_proj", "query"): each for name, each in all_.items()},
        {},
        r"no place .*\.query",
    ),
    "another base": (changed(A, lambda a: a[:, :-8]), {}, f"{A}: the adapter is of a weight of .*q_proj is"),
    "wider base": (changed(B, lambda b: torch.cat([b, b])), {}, f"{B}: the adapter is of a weight"),
    "more layers": (
        lambda all_: {name.replace("layers.1.", "layers.7."): each for name, each in all_.items()},
        {},
        "layers.7",
    ),
    "NaN": (changed(A, lambda a: a * float("nan")), {}, f"{A} has a number that is not finite"),
    "infinity": (changed(B, lambda b: b / 0), {}, f"{B} has a number that is not finite"),
    "huge alpha": (scaled(1e30), {"lora_alpha": 1e30}, "its scale .* makes numbers that are not finite"),
    "rank 0": (same, {"r": 0}, "r is 0, and a rank is at least 1"),
    "alpha of another type": (same, {"lora_alpha": "12"}, "lora_alpha is '12', which has another type"),
    "pattern": (same, {"rank_pattern": {"(": 4}}, r"rank_pattern has '\('"),
    "DoRA without vectors": (same, {"use_dora": True}, f"{DOWN} has no lora_magnitude_vector"),
    "vectors without DoRA": (
        lambda all_: {**all_, f"{Q}.lora_magnitude_vector": torch.ones(64)},
        {},
        "says no use_dora",
    ),
    "DoRA with a bias of lora_B": (same, {"use_dora": True, "lora_bias": True}, "lora_bias with use_dora"),
    "a bias that the model lacks": (
        lambda all_: {**all_, f"{Q}.base_layer.bias": torch.ones(64)},
        {"bias": "all"},
        "no bias at .*q_proj",
    ),
    "a norm's bias": (
        lambda all_: {**all_, f"{NORM}.bias": torch.ones(64)},
        {"bias": "all"},
        "no place .*input_layernorm",
    ),
    "a norm of its own": (lambda all_: {**all_, f"{NORM}.weight": torch.ones(64)}, {}, "no place .*input_layernorm"),
    "a projection of its own": (
        lambda all_: {**without_q(all_), f"{Q}.weight": torch.ones(64, 64)},
        {},
        "is a matrix of its own, and only",
    ),
    "more tokens": (lambda all_: {**all_, HEAD: torch.ones(VOCAB_SIZE + 3, 64)}, {}, f"{HEAD}: the adapter is of"),
    "PiSSA": (same, {"init_lora_weights": "pissa_niter_4"}, "a base model that was changed"),
    "OLoRA": (same, {"init_lora_weights": "olora"}, "a base model that was changed"),
    "CorDA": (same, {"init_lora_weights": "corda"}, "a base model that was changed"),
    "LoftQ": (same, {"init_lora_weights": "loftq"}, "a base model that was changed"),
    "LoRA-GA": (same, {"init_lora_weights": "lora_ga"}, "a base model that was changed"),
    **{kind: (same, {"peft_type": kind}, f"peft_type is '{kind}'") for kind in ("IA3", "LOHA", "LOKR", "VERA", "OFT")},
    "activated": (same, {"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens is"),
    "tokens": (same, {"trainable_token_indices": [1]}, "trainable_token_indices is"),
    "more layers than the base": (same, {"layer_replication": [[0, 2]]}, "layer_replication is"),
    "a setting of tomorrow": (same, {"use_something": True}, "use_something is True, which is not in this version"),
    "another task": (same, {"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS': adapters are served with models that"),
}


@pytest.fixture
def folder(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> Path:
    make_adapter(tiny("llama").oracle, tmp_path)
    return tmp_path


@pytest.fixture
def load(tiny: Callable[[str], Checkpoint]) -> Callable[..., object]:
    facts = tiny("llama").facts

    def read(folder: Path, max_rank: int = 4, targets: tuple[str, ...] | None = None) -> object:
        adapter, sources = read_adapter(folder), trained_weights(facts, 64)
        kinds = kinds_needed(sources, [module.name for module in adapter.modules])
        owned = [module.name for module in adapter.modules if module.whole is not None]
        is_place = place_filter(sources, targets, kinds)
        program = with_adapters(describe(facts, 64).compiled, Wanted(max_rank, is_place, whole_weights(sources, owned)))
        return load_adapter(adapter, AdapterPlaces.of(facts, 64, program, BaseWeights(facts, 64)), "f32")

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
    with pytest.raises(ApplianceError, match=r"no place for an adapter of model.layers.0.mlp.down_proj") as caught:
        load(folder, targets=("q_proj", "v_proj"))
    assert str(caught.value.hint).startswith("it is none of lora.target_modules: add down_proj")
    path = folder / "adapter_model.safetensors"
    save_file(renamed(load_file(path)), path)
    with pytest.raises(ApplianceError, match="no place for an adapter of language_model") as caught:
        load(folder)
    assert "such as model.layers.0.mlp.down_proj" in str(caught.value.hint)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


CUT: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no config": ("adapter_config.json", Path.unlink, "there is no adapter_config.json"),
    "no weights": (
        "adapter_model.safetensors",
        Path.unlink,
        "there is no adapter_model.safetensors and no",
    ),
    "config cut off": (
        "adapter_config.json",
        cut_off,
        "no valid|not valid",
    ),
    "weights cut off": (
        "adapter_model.safetensors",
        cut_off,
        "adapter_model",
    ),
    "a tensor twice": (
        "adapter_model.safetensors",
        lambda path: path.write_bytes(path.read_bytes().replace(A.encode(), B.encode())),
        "twice|two|again",
    ),
    "no adapter": ("adapter_config.json", lambda path: path.write_text("[]"), "not a JSON object"),
}


@pytest.mark.parametrize("name", CUT)
def test_files_that_are_no_adapter_are_refused(name: str, folder: Path) -> None:
    file, change, problem = CUT[name]
    change(folder / file)
    with pytest.raises(ApplianceError, match=problem):
        read_adapter(folder)


def test_an_alpha_of_zero_and_matrices_of_zero_have_no_effect(folder: Path, load: Callable[..., Any]) -> None:
    assert read_adapter(folder).has_effect
    settings, path = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"lora_alpha": 0}))
    assert not read_adapter(folder).has_effect
    assert all(change.is_zero for change in load(folder).values())
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"lora_alpha": 8}))
    save_file({name: each * (0 if "lora_B" in name else 1) for name, each in load_file(path).items()}, path)
    assert not read_adapter(folder).has_effect
