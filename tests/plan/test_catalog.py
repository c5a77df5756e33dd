"""The planner's tables say what the layers above really do."""

import importlib
import typing

import pytest

from appliance.catalog.architectures import _BUILT, _KNOWN, ARCHITECTURES
from appliance.catalog.formats import STORAGES, dense_error
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.facts import Storage
from appliance.hardware import load_profiles
from appliance.kernels.layout import Layout


def test_every_storage_has_a_row() -> None:
    assert set(STORAGES) == set(typing.get_args(Storage))


def test_layouts_are_canonical() -> None:
    layouts = {entry.form.layout for entry in STORAGES.values() if entry.form is not None}
    assert layouts <= {str(layout) for layout in Layout}


def test_profiles_name_known_kernel_sets() -> None:
    assert {name for profile in load_profiles() for name in profile.kernel_sets} <= set(KERNEL_SETS)


@pytest.mark.parametrize("name", [entry.name for entry in ARCHITECTURES.values() if entry.family])
def test_every_family_is_there(name: str) -> None:
    assert callable(importlib.import_module(str(ARCHITECTURES[name].family)).build)


def test_an_architecture_has_one_row() -> None:
    """A family that is added leaves the list of those that are known by name only."""
    names = [entry.name for entry in (*_BUILT, *_KNOWN)]
    assert len(names) > 20
    assert [name for name in names if names.count(name) > 1] == []


def test_errors_are_stated_where_there_are_any() -> None:
    assert dense_error("bf16", "bf16") == dense_error("bf16", "f32") == dense_error("f16", "f32") == "exact"
    assert dense_error("f32", "bf16").startswith("rounded")
    assert "overflow" in dense_error("bf16", "f16")
