"""Models without weight files: their tensors are those of the real checkpoint, and they plan, bind and run."""

import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.loading.random_tensors import RandomTensors
from appliance.models.describe import build_decoder
from appliance.models.facts import read_facts
from appliance.models.tensors import is_ignored
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.prepare import prepare
from appliance.plan.render import render_text
from appliance.server.openai.models import _card
from tests.models.tiny import FAMILIES, VARIANTS
from tests.parity.conftest import Checkpoint

SPEC = """
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true, quantization: {quantization}}}
loading: {{load_format: {load_format}}}
"""


def config_alone(checkpoint: Checkpoint, folder: Path) -> ModelFacts:
    folder.mkdir(exist_ok=True)
    shutil.copy(checkpoint.folder / "config.json", folder)
    return read_facts(folder, None, "dummy")


def spec_of(folder: Path, quantization: str = "auto", load_format: str = "dummy") -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(source=folder / "model", quantization=quantization, load_format=load_format))
    return path


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_the_config_states_every_weight(name: str, tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    """A family may know experts in stacks and one by one: then only the numbers in all are alike."""
    checkpoint = tiny(name)
    stored = build_decoder(checkpoint.facts, 64)
    wanted = [tensor for tensor in checkpoint.facts.tensors if not is_ignored(tensor.name, stored)]
    found = config_alone(checkpoint, tmp_path).tensors
    assert sum(prod(tensor.shape) for tensor in found) == sum(prod(tensor.shape) for tensor in wanted)
    assert all(size > 0 for tensor in found for size in tensor.shape)
    assert {tensor.storage for tensor in found} == {"f32"}


def test_names_are_those_of_the_checkpoint(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    checkpoint = tiny("llama")
    found = {tensor.name: tensor.shape for tensor in config_alone(checkpoint, tmp_path).tensors}
    assert found == {tensor.name: tensor.shape for tensor in checkpoint.facts.tensors}


@pytest.mark.parametrize(
    ("name", "quantization"),
    [("gemma3", "auto"), ("gemma3", "int4"), ("gpt-oss", "auto"), ("gemma3", "bitsandbytes")],
)
def test_it_runs_in_the_planned_bytes(
    name: str, quantization: str, tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    config_alone(tiny(name), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 128}))
    plan = prepare(spec_of(tmp_path, quantization)).plan
    assert (plan.model.format, plan.loading.keep_packed) == ("dummy", False)
    assert any("random numbers" in warning for warning in plan.warnings)
    assert "random numbers" in render_text(plan)
    assert _card(plan, 0, "tiny", {}, {})["weights"] == "random"
    backend = load_backend(plan, SchedulerConfig.from_plan(plan), lambda *_: None)
    measured = dict(backend.executable.memory_bytes)
    backend.executable.close()
    rows = {row.name: row for row in compare_boot(plan, BootReport(seconds={}, memory_bytes=measured, num_blocks=0))}
    assert rows["weights"].planned_bytes == rows["weights"].measured_bytes > 0


def test_values_have_the_spread_of_the_config(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    facts = config_alone(tiny("gemma3"), tmp_path)
    sources = build_decoder(facts, 64).weights.values()
    shapes = {tensor.name: tensor.shape for tensor in facts.tensors}
    random = RandomTensors(facts, sources, 0)
    read = {name: random.read(name).view(np.float32) for name in shapes}
    matrices = np.concatenate([read[name] for name, shape in shapes.items() if len(shape) > 1])
    assert matrices.std() == pytest.approx(facts.config["initializer_range"], rel=0.02)
    assert abs(matrices.mean()) < facts.config["initializer_range"] / 50
    vectors = {float(value) for name, shape in shapes.items() if len(shape) == 1 for value in read[name]}
    assert vectors == {0.0}, "Gemma's norms are 1 + w"
    again, other = RandomTensors(facts, sources, 0), RandomTensors(facts, sources, 1)
    name = next(name for name, shape in shapes.items() if len(shape) > 1)
    assert np.array_equal(again.read(name), random.read(name))
    assert not np.array_equal(other.read(name), random.read(name))


def test_random_weights_are_never_chosen_by_themselves(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    config_alone(tiny("llama"), tmp_path / "model")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        prepare(spec_of(tmp_path, load_format="auto"))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json, which alone tells"):
        prepare(spec_of(tmp_path))


def test_codes_are_not_made(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    config_alone(tiny("llama"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(SpecError, match="random weights are floats"):
        prepare(spec_of(tmp_path))
    assert prepare(spec_of(tmp_path, "none")).plan.model.format == "dummy"


def test_another_dtype_is_refused(tiny: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    checkpoint = tiny("llama")
    config_alone(checkpoint, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "int4"}))
    with pytest.raises(CheckpointError, match="dtype is int4, in which no random weights are made"):
        prepare(spec_of(tmp_path))
