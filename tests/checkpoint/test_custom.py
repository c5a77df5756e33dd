"""Loaders of weights of the operator's own: what they say is checked, and what they do takes a bounded time."""

import json
from pathlib import Path

import numpy as np
import pytest

from appliance.base.errors import ApplianceError, SpecError
from appliance.base.plugins import PluginError
from appliance.checkpoint import custom
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.loader_choice import LoaderChoice
from appliance.checkpoint.opening import open_source
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import open_tensors
from appliance.plan.prepare import prepare
from tests.e2e.served import make_random_model

OWN = "tests.checkpoint.own_loaders"
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: random
model: {source: ./model}
loading: {load_format: custom, loader_cls: %s}
decoding: {trust_plugins: true}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    return tmp_path / "model"


def choice(name: str) -> LoaderChoice:
    return LoaderChoice(path=f"{OWN}.{name}", options={"at": "."})


def test_its_tensors_are_those_of_the_files(model: Path) -> None:
    plain = read_model_facts(model)
    facts = read_model_facts(model, None, "custom", loader=choice("OfSafetensors"))
    shapes = {tensor.name: (tensor.storage, tensor.shape) for tensor in plain.tensors}
    assert {tensor.name: (tensor.storage, tensor.shape) for tensor in facts.tensors} == shapes
    assert (facts.geometry, facts.tokenizer) == (plain.geometry, plain.tokenizer)
    assert facts.header_sha256 != plain.header_sha256
    with open_source(facts) as found, open_tensors(plain) as expected:
        for name in shapes:
            assert np.array_equal(found.read(name), expected.read(name))
            found.release(name, 0, len(expected.read(name)))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Lies", r"read\('lm_head.weight'\) answered float32 of shape \(.*, 64, 1\), and f32 \(.*, 64\) was said"),
        ("Short", r"answered \d+ bytes, and f32 \(.*\) has \d+"),
        ("OtherType", r"answered int32 of shape .*, and f32 .* was said"),
        ("NoBytes", "answered int, and no bytes"),
        ("Raises", "raised LookupError: 'no lm_head.weight on the shelf'|raised LookupError: no lm_head.weight"),
        ("Leaves", f"{OWN}.Leaves raised SystemExit"),
        ("Hangs", f"{OWN}.Hangs took more than 0\\.3"),
    ],
)
def test_a_loader_that_fails_names_the_tensor(
    model: Path, name: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = read_model_facts(model, None, "custom", loader=choice(name))
    monkeypatch.setattr(custom, "TIMEOUT_S", 0.3)
    with open_source(facts) as found, pytest.raises(CheckpointError, match=problem) as caught:
        found.read("lm_head.weight")
    assert f"loading.loader_cls: {OWN}.{name}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Nothing", "is no loader: it has no tensors, read"),
        ("NeverMade", "raised TypeError"),
        ("Missing", "cannot be imported"),
        ("NoShape", "tensors answered 7 for 'lm_head.weight', and no dtype and shape"),
        ("NoType", "tensors answered dtype 'F7' for 'lm_head.weight'"),
        ("NoSize", r"tensors answered the impossible shape \(-1,\)"),
        ("NoMapping", "tensors answered list, and no mapping"),
    ],
)
def test_what_is_no_loader_ends_planning(model: Path, name: str, problem: str) -> None:
    spec = model.parent / "spec.yaml"
    spec.write_text(SPEC % f"{OWN}.{name}")
    with pytest.raises(ApplianceError, match=problem) as caught:
        prepare(spec)
    assert isinstance(caught.value, PluginError | CheckpointError)


def test_a_shape_that_the_model_does_not_have_is_refused_by_the_plan(model: Path) -> None:
    spec = model.parent / "spec.yaml"
    spec.write_text(SPEC % f"{OWN}.Misshapen")
    with pytest.raises(SpecError) as caught:
        prepare(spec)
    assert any("model.norm.weight" in each.message for each in caught.value.diagnostics)


def test_a_plan_says_what_a_loader_cannot_have(model: Path) -> None:
    spec = model.parent / "spec.yaml"
    spec.write_text(SPEC % f"{OWN}.OfSafetensors")
    plan = prepare(spec).plan
    assert (plan.model.format, plan.model.loader.path) == ("custom", f"{OWN}.OfSafetensors")
    assert not plan.loading.keep_packed
    refused = {
        "model.weight_update_paths=[./new]": "a loader of your own reads the model",
        "model.model_impl=transformers": "the weights are custom, and modelling code reads safetensors",
    }
    for override, problem in refused.items():
        with pytest.raises(SpecError, match=problem):
            prepare(spec, [override])
    config = json.loads((model / "config.json").read_text())
    quantized = config | {"quantization_config": {"quant_method": "fp8"}}
    (model / "config.json").write_text(json.dumps(quantized))
    with pytest.raises(CheckpointError, match="a loader of your own reads plain tensors"):
        prepare(spec)
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="is no folder"):
        prepare(spec, ["model.source=./model/config.json"])
