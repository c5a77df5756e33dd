"""Checkpoints that the compressed-tensors library wrote, against transformers running the same weights, dequantized.

One scale a row is kept in f32, so those agree to f32 rounding. Scales of groups are rounded to f16, which moves the
logits of these models by less than 0.5 % of their spread.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.interface import KernelSet
from tests.models.compressed import scheme, write_compressed
from tests.models.tiny import VOCAB_SIZE
from tests.parity.harness import Driver, bind, execution_of, precision

PROMPT = [int(token) for token in np.random.default_rng(9).integers(3, VOCAB_SIZE, 23)]
TIGHT = {"rtol": 3e-4, "atol": 3e-4}
F16_SCALES, INT8_ACTIVATIONS = 0.005, 0.05
SCHEMES = {
    "W8A8": (scheme(8, activations=True), "int8_channel"),
    "W8A8, asymmetric weights": (scheme(8, symmetric=False, activations=True), "int8_channel_zp"),
    "W8A16": (scheme(8), "int8_channel"),
    "W8A16 in groups": (scheme(8, 32), "int8_g32"),
    "W4A16 in groups": (scheme(4, 32), "int4_g32"),
    "W4A16 in groups, asymmetric": (scheme(4, 32, symmetric=False), "int4_g32_zp"),
    "W4A16": (scheme(4), "int4_channel"),
    "W4A16, asymmetric": (scheme(4, symmetric=False), "int4_channel_zp"),
}
Written = tuple[ModelFacts, np.ndarray]
Write = Callable[[str, str], Written]


@pytest.fixture(scope="session")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Facts of a checkpoint, and the logits of its oracle."""
    made: dict[tuple[str, str], Written] = {}

    def write(name: str, which: str) -> Written:
        if (name, which) not in made:
            folder: Path = tmp_path_factory.mktemp("compressed")
            config: dict[str, Any] = SCHEMES[which][0]
            oracle = write_compressed(name, folder, config)
            with torch.inference_mode():
                expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
            made[name, which] = (read_model_facts(folder), expected)
        return made[name, which]

    return write


def logits(facts: ModelFacts, kernel_set: KernelSet, dense: str | None = None, **changes: object) -> np.ndarray:
    bounds = execution_of(max_model_len=64, **changes)
    return Driver(bind(facts, kernel_set, precision(facts, dense), bounds), bounds).all_logits(PROMPT)


def deviation(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - exact).mean()) / exact.std())


@pytest.mark.parametrize("which", SCHEMES)
def test_every_scheme(which: str, compressed: Write, kernel_set: KernelSet) -> None:
    facts, expected = compressed("llama", which)
    assert facts.quantization == "compressed-tensors"
    assert SCHEMES[which][1] in {tensor.storage for tensor in facts.tensors}
    if "channel" in SCHEMES[which][1]:
        np.testing.assert_allclose(logits(facts, kernel_set), expected, **TIGHT)
    else:
        assert deviation(logits(facts, kernel_set), expected) < F16_SCALES


@pytest.mark.parametrize("which", SCHEMES)
def test_every_scheme_dequantized(which: str, compressed: Write, kernel_set: KernelSet) -> None:
    facts, expected = compressed("llama", which)
    np.testing.assert_allclose(logits(facts, kernel_set, dense="f32"), expected, **TIGHT)


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "phi3", "llama-biases"])
def test_other_families(name: str, compressed: Write, kernel_set: KernelSet) -> None:
    """Tied heads, biases, fused tensors that are cut into rows."""
    facts, expected = compressed(name, "W8A8")
    np.testing.assert_allclose(logits(facts, kernel_set), expected, **TIGHT)


def test_rounded_activations_stay_near(compressed: Write, kernel_set: KernelSet) -> None:
    if kernel_set.name == "reference" or not KERNEL_SETS[kernel_set.name].can_quantize_activations:
        pytest.skip("the set computes in floats")
    facts, expected = compressed("llama", "W8A8")
    found = logits(facts, kernel_set, quantize=True)
    assert not np.array_equal(found, logits(facts, kernel_set))
    assert deviation(found, expected) < INT8_ACTIVATIONS
