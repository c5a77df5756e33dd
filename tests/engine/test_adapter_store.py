"""Adapters that an engine keeps: their files are those of the plan, and what is not needed is forgotten."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.checkpoint.adapter import read_adapter
from appliance.engine.adapters import AdapterChangedError, AdapterStore
from appliance.layers.spec import WeightSource
from appliance.models.adapter_places import AdapterPlaces
from appliance.plan.types import AdapterPlan
from appliance.program.adapters import AdapterPlace
from tests.models.adapters import make_adapter

SOURCES = {"w": WeightSource("layers.0.w.weight")}
PLACES = AdapterPlaces({"w": AdapterPlace(("w",), (8,), 6, 4)}, lambda _: SOURCES)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"w": torch.nn.Linear(6, 8, bias=False)})])


def planned(folder: Path) -> AdapterPlan:
    facts = read_adapter(folder)
    return AdapterPlan(name="mine", path=str(folder), sha256=facts.sha256, rank=4, num_modules=1)


def rewrite(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({name: change(each) for name, each in load_file(path).items()}, path)


def test_other_files_than_planned_are_refused(tmp_path: Path) -> None:
    make_adapter(Model(), tmp_path)
    plan = planned(tmp_path)
    rewrite(tmp_path, lambda each: each * 2)
    with pytest.raises(AdapterChangedError, match="not those that were planned"):
        AdapterStore(PLACES, "f32").load(plan)


def test_modules_to_which_an_adapter_adds_nothing_are_not_effective(tmp_path: Path) -> None:
    make_adapter(Model(), tmp_path)
    store, whole = AdapterStore(PLACES, "f32"), planned(tmp_path)
    store.load(whole)
    rewrite(tmp_path, torch.zeros_like)
    store.load(planned(tmp_path))
    assert [store.kept(each.sha256).effective_modules for each in (whole, planned(tmp_path))] == [1, 0]
    assert not np.any(store.maps(planned(tmp_path).sha256)["w"].up)


def test_what_is_not_needed_is_forgotten_with_its_bytes(tmp_path: Path) -> None:
    make_adapter(Model(), tmp_path)
    store, first = AdapterStore(PLACES, "f32"), planned(tmp_path)
    store.load(first)
    one = store.size_bytes
    rewrite(tmp_path, lambda each: each * 2)
    second = planned(tmp_path)
    store.load(second)
    assert store.size_bytes == 2 * one > 0
    store.keep_only({second.sha256})
    assert (first.sha256 in store, second.sha256 in store, store.size_bytes) == (False, True, one)
