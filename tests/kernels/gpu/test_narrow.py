"""Activations in bf16 and f16: whole models stay near those in f32, whoever runs their operators."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.kernel_set import GpuKernelSet, place_activations
from appliance.program.operators import GatherRows, Linear, StepProgram
from appliance.program.routing import ChooseExperts
from appliance.program.slots import Extent, Slot, whole
from tests.models.tiny import VOCAB_SIZE, make_tiny
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.rounding import deviation

TOKENS = Extent.TOKENS
PROMPT = [int(token) for token in np.random.default_rng(4).integers(3, VOCAB_SIZE, 19)]
# Experts and sinks; recurrent states; latent attention; windows, caps and norms of heads; several streams.
FAMILIES = ("gpt-oss", "qwen3_next", "deepseek3", "gemma2", "gemma3n")


@pytest.mark.parametrize("family", FAMILIES)
def test_narrow_activations_stay_near(family: str, tmp_path: Path) -> None:
    make_tiny(family, tmp_path)
    facts, limits = read_model_facts(tmp_path), execution_of(max_model_len=64)
    found = {}
    for dtype in ("f32", "bf16", "f16"):
        numerics = dataclasses.replace(limits.numerics, activation_dtype=dtype)
        execution = dataclasses.replace(limits, numerics=numerics)
        found[dtype] = Driver(bind(facts, GpuKernelSet("torch"), execution=execution), execution).all_logits(PROMPT)
    assert 0 < deviation(found["f16"], found["f32"]) < 0.02
    assert 0 < deviation(found["bf16"], found["f32"]) < 0.1


def test_logits_and_what_routes_stay_in_f32() -> None:
    logits, chosen, factors = Slot(0, TOKENS, 8), Slot(1, TOKENS, 2, "int32"), Slot(2, TOKENS, 2)
    out, x = Slot(3, Extent.SAMPLED, 16), Slot(4, TOKENS, 16)
    operators = (
        Linear(whole(x), "router", whole(logits)), ChooseExperts(logits, chosen, factors, "softmax"), GatherRows(x, out)
    )  # fmt: skip
    program = StepProgram(operators, (logits, chosen, factors, out, x), out)
    _, buffers = place_activations(program, execution_of(), torch.bfloat16, Device(torch.device("cpu")))
    types = [buffers[slot.index].dtype for slot in program.slots]
    assert types == [torch.float32, torch.int32, torch.float32, torch.float32, torch.bfloat16]
