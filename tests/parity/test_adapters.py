"""Adapters against transformers with merged weights, and rows beside them against the model without places."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.adapter import read_adapter
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Adapters, KernelSet, StepAdapters
from appliance.layers.adapters import Wanted, with_adapters
from appliance.loading.adapters import load_adapter
from appliance.models.adapter_places import AdapterPlaces
from tests.models.adapters import make_adapter
from tests.models.tiny import VOCAB_SIZE
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind_adapted, execution_of

PROMPTS = [[int(token) for token in np.random.default_rng(seed).integers(3, VOCAB_SIZE, 17)] for seed in range(4)]
TOLERANCE = {"rtol": 3e-4, "atol": 3e-4}
MAX_RANK = 8
# Split and fused projections, transposed ones, plain feed-forwards, biases, experts beside, states.
NAMES = [
    "llama",
    "qwen2",
    "gpt2",
    "gpt_neox",
    "phi3",
    "bloom",
    "falcon",
    "gemma3",
    "mixtral",
    "qwen3_5",
    "mamba2",
    "lfm2",
]


def bounds() -> Execution:
    made = execution_of(max_model_len=64)
    return replace(made, limits=replace(made.limits, max_loras=3), numerics=replace(made.numerics, lora_dtype="f32"))


def is_place(weight: str) -> bool:
    return weight.startswith("layers.") and not weight.endswith(".router")


def logits_of(model: torch.nn.Module, prompt: list[int]) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor([prompt])).logits[0].numpy())


def adapted(checkpoint: Checkpoint, kernel_set: KernelSet) -> tuple[Driver, AdapterPlaces]:
    limits = bounds()
    executable, program = bind_adapted(
        checkpoint.facts, kernel_set, lambda one: with_adapters(one, Wanted(MAX_RANK, is_place)), execution=limits
    )
    assert program is not None
    return Driver(executable, limits), AdapterPlaces.of(checkpoint.facts, 64, program)


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_gives_what_merged_weights_give(
    name: str, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet, tmp_path: Path
) -> None:
    checkpoint = tiny(name)
    driver, places = adapted(checkpoint, kernel_set)
    assert isinstance(driver.executable, Adapters)
    plain = driver.all_logits(PROMPTS[1])
    models = [make_adapter(checkpoint.oracle, tmp_path / f"{seed}", seed) for seed in range(2)]
    for slot in range(2):
        driver.executable.put_adapter(slot, load_adapter(read_adapter(tmp_path / f"{slot}"), places, "f32"))
    slots = [0, -1, 1, 0]
    driver.adapters = StepAdapters(np.array(slots, np.int32), np.ones(4, np.float32))
    rows = [driver.sequence(prompt) for prompt in PROMPTS]
    got = driver.step([(row, len(row.token_ids)) for row in rows])
    if not KERNEL_SETS[kernel_set.name].is_batch_invariant:
        np.testing.assert_allclose(got[1], plain[-1], **TOLERANCE)
    else:
        np.testing.assert_array_equal(got[1], plain[-1])
    for at, slot in enumerate(slots):
        if slot >= 0:
            expected = logits_of(models[slot], PROMPTS[at])[-1]
            assert np.abs(expected - logits_of(checkpoint.oracle, PROMPTS[at])[-1]).max() > 0.1
            np.testing.assert_allclose(got[at], expected, **TOLERANCE)
