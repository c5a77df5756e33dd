"""Adapters that an engine keeps: their files are those of the plan, and one that adds nothing is told."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.checkpoint.adapter import read_adapter
from appliance.engine.adapters import AdapterChangedError, AdapterStore
from appliance.layers.spec import WeightSource
from appliance.loading.adapters import AdapterPlaces
from appliance.plan.types import AdapterPlan
from tests.models.adapters import make_adapter

PLACES = AdapterPlaces({"w": (8, 6)}, {"w": WeightSource("layers.0.w.weight")}, 4)


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


def test_an_adapter_that_adds_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_adapter(Model(), tmp_path)
    store = AdapterStore(PLACES, "f32")
    with caplog.at_level(logging.WARNING):
        store.load(planned(tmp_path))
        assert not caplog.records
        rewrite(tmp_path, torch.zeros_like)
        store.load(planned(tmp_path))
    assert [record.getMessage() for record in caplog.records] == ["an adapter adds nothing: its matrices are zero"]
    assert not np.any(store.maps(planned(tmp_path).sha256)["w"].up)
