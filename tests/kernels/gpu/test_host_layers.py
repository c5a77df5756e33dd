"""Layers that stay in host memory: a program gives the same bits through two buffers, on torch's CPU device."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.errors import BindError
from appliance.kernels.execution import Execution
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.plan.types import PrecisionPlan
from appliance.program.head_matrices import head_matrices
from appliance.program.streamed_layers import streamable_matrices
from tests.kernels.gpu.test_sleeping import weights_of
from tests.models.tiny import make_tiny
from tests.models.tiny_config import VOCAB_SIZE
from tests.parity.harness import Driver, bind, execution_of, precision

PROMPT = [int(token) for token in np.random.default_rng(5).integers(3, VOCAB_SIZE, 9)]
WHOLE = execution_of(max_model_len=64, block_size=16)


def streaming(*layers: int) -> Execution:
    return dataclasses.replace(WHOLE, placement=dataclasses.replace(WHOLE.placement, streamed_layers=layers))


def bound(facts: ModelFacts, plan: PrecisionPlan, execution: Execution) -> GpuExecutable:
    executable = bind(facts, GpuKernelSet("torch"), plan, execution)
    assert isinstance(executable, GpuExecutable)
    return executable


@torch.no_grad()
def halved(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(0.5)


def logits(executable: GpuExecutable) -> np.ndarray:
    """Of steps that follow one another, as what the buffers hold at the end of one is what the next begins with."""
    driver = Driver(executable, WHOLE)
    row = driver.sequence(PROMPT)
    return np.concatenate([driver.step([(row, end - row.num_computed)])[0] for end in (4, 5, 6, 8)])


@pytest.mark.parametrize("family", ["olmo3", "gemma3n", "llama4"])  # five layers, and streams; experts
@pytest.mark.parametrize("form", [None, WeightForm("int8", group_size=16)])
def test_streamed_layers_say_what_resident_ones_say(family: str, form: WeightForm | None, tmp_path: Path) -> None:
    make_tiny(family, tmp_path)
    facts = read_model_facts(tmp_path)
    plan = precision(facts) if form is None else precision(facts, quantize=form)
    whole = bound(facts, plan, WHOLE)
    want, count = logits(whole), facts.geometry.num_layers
    assert count >= 4
    for layers in (tuple(range(count)), (0, 1, count - 1), (1, 2, count - 1)):
        streamed = bound(facts, plan, streaming(*layers))
        assert (logits(streamed) == want).all(), layers
        held = set(streamed._layers._host)
        assert held == {name for name in whole._matrices if name.startswith(tuple(f"layers.{at}." for at in layers))}
        assert {int(name.split(".")[1]) for name in held} == set(layers)
        spared = whole.memory_bytes["weights"] - streamed.memory_bytes["weights"]
        host = sum(matrix.nbytes for matrix in streamed._layers._host.values())
        assert spared == host - sum(buffer.nbytes for buffer in streamed._layers._buffers)


def test_matrices_by_head_stay_on_the_device_as_the_plan_counts_them(tmp_path: Path) -> None:
    make_tiny("deepseek3", tmp_path)
    facts = read_model_facts(tmp_path)
    whole, streamed = bound(facts, precision(facts), WHOLE), bound(facts, precision(facts), streaming(0, 1, 2))
    by_head = head_matrices(streamed._program)
    assert len(by_head) == 6
    assert set(streamed._layers._host) == set(streamable_matrices(streamed._program)) == {
        name for name in whole._matrices if name.startswith("layers.") and name not in by_head
    }  # fmt: skip
    assert (logits(streamed) == logits(whole)).all()


def test_a_layer_is_computed_from_the_buffer_and_not_from_the_host(tmp_path: Path) -> None:
    make_tiny("olmo3", tmp_path)
    facts = read_model_facts(tmp_path)
    executable = bound(facts, precision(facts), streaming(0, 1, 2, 3))
    before = logits(executable)
    buffers = [buffer.data_ptr() for buffer in executable._layers._buffers]
    sizes = [buffer.nbytes for buffer in executable._layers._buffers]
    for name in executable._layers._host:
        at = executable._matrices[name].read(slice(None), torch.float32).data_ptr()
        assert any(start <= at < start + size for start, size in zip(buffers, sizes, strict=True)), name
    for buffer in executable._layers._buffers:
        buffer.fill_(1)
    assert not (logits(executable) == before).all(), "the first two layers were in the buffers"
    assert (logits(executable) == before).all(), "and come again behind the last"


def test_new_weights_are_streamed_from_the_next_step_on(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, change in zip(paths, (None, halved), strict=True):
        path.mkdir()
        make_tiny("olmo3", path, change)
    first, second = (read_model_facts(path) for path in paths)
    executable = bound(first, precision(first), streaming(0, 2, 3))
    assert not (logits(executable) == logits(bound(second, precision(second), WHOLE))).all()
    with weights_of(second, precision(second)) as weights:
        executable.stage_weights(weights).commit()
    assert (logits(executable) == logits(bound(second, precision(second), WHOLE))).all()


def test_two_layers_would_fill_the_buffers_and_are_refused(tmp_path: Path) -> None:
    make_tiny("olmo3", tmp_path)
    facts = read_model_facts(tmp_path)
    with pytest.raises(BindError, match="2 layers cannot be streamed"):
        bound(facts, precision(facts), streaming(0, 3))
