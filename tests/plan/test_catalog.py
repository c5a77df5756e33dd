"""The planner's tables say what the layers above really do."""

import importlib
import typing

import pytest

from appliance.catalog.architectures import ARCHITECTURES
from appliance.catalog.families import ACTIVATIONS, REFUSED_KEYS, ROTARY_NUMBERS
from appliance.catalog.formats import STORAGES, dense_error, tensor_role
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.catalog.operators import OPERATORS
from appliance.checkpoint.facts import ModelFacts, Storage
from appliance.hardware import load_profiles
from appliance.kernels.layout import Layout
from appliance.layers.decoder import compile_decoder
from appliance.loading.model import build_decoder
from appliance.models import family, rotary
from appliance.program.operators import Operator

from .checkpoints import from_config, from_header


def test_operators_are_those_of_the_kernels() -> None:
    assert set(OPERATORS) == {record.__name__ for record in typing.get_args(Operator)}


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


@pytest.mark.parametrize(
    "model",
    [
        from_header("qwen2.5-coder-0.5b-q4_k_m"),
        from_header("gemma-3-270m-q4_k_m"),
        from_config("mistral-7b-v0.1"),
        from_config("llama-3.1-8b"),
        from_config("gpt2"),
    ],
    ids=lambda model: model.architecture,
)
def test_architectures_name_the_operators_they_use(model: ModelFacts) -> None:
    program = compile_decoder(build_decoder(model, 128), {}).program
    used = {type(operator).__name__ for operator in program.operators}
    assert used == set(ARCHITECTURES[model.architecture].operators)


def test_families_express_what_the_catalogue_says() -> None:
    assert set(ACTIVATIONS) == set(family.ACTIVATIONS)
    assert set(ROTARY_NUMBERS) == set(rotary._SCALINGS)
    assert set(REFUSED_KEYS) <= {name for name, entry in ARCHITECTURES.items() if entry.family}


def test_errors_are_stated_where_there_are_any() -> None:
    assert dense_error("bf16", "bf16") == dense_error("bf16", "f32") == dense_error("f16", "f32") == "exact"
    assert dense_error("f32", "bf16").startswith("rounded")
    assert "overflow" in dense_error("bf16", "f16")


def test_roles() -> None:
    assert tensor_role("model.embed_tokens.weight", 2) == "embedding"
    assert tensor_role("model.layers.0.mlp.up_proj.weight", 2) == "linear"
    assert tensor_role("transformer.wpe.weight", 2) == tensor_role("model.norm.weight", 1) == "other"
