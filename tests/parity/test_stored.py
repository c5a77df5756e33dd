"""Checkpoints in the forms of quantization methods, on every kernel set, against transformers running their values."""

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.interface import KernelSet
from tests.models.stored.bitsandbytes import eight_bits, four_bits
from tests.models.stored.floats import compressed, e4m3, nvfp4
from tests.models.stored.hqq import hqq
from tests.models.stored.integers import awq, gptq
from tests.models.stored.scheme import write_experts_apart, write_mxfp4, write_stored
from tests.models.tiny import VOCAB_SIZE
from tests.parity.test_compressed_tensors import TIGHT, deviation, logits

PROMPT = [int(token) for token in np.random.default_rng(9).integers(3, VOCAB_SIZE, 23)]
F16_VALUES, INT8_ACTIVATIONS = 0.005, 0.05
SCHEMES = {
    "gptq 3": gptq(3, 32, symmetric=False),
    "gptq 4": gptq(4, 32),
    "gptq 8": gptq(8, -1),
    "gptq act-order": gptq(4, 32, ordered=True),
    "awq": awq(32),
    "fp8": e4m3("row"),
    "hqq": hqq(4, 32),
    "hqq 3 down the rows": hqq(3, 32, axis=0),
    "bitsandbytes nf4": four_bits("nf4", nested=True),
    "bitsandbytes int8": eight_bits(),
    "nvfp4": nvfp4(),
}
Written = tuple[ModelFacts, np.ndarray]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder: Path = tmp_path_factory.mktemp("mixture")
    oracle = write_mxfp4("gpt-oss", folder)
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
    return read_model_facts(folder), expected


@pytest.fixture(scope="module", params=SCHEMES)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Facts of a checkpoint, and the logits of its oracle."""
    folder: Path = tmp_path_factory.mktemp("stored")
    oracle = write_stored("llama", folder, SCHEMES[request.param])
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
    facts = read_model_facts(folder)
    assert SCHEMES[request.param].storage in {tensor.storage for tensor in facts.tensors}
    return facts, expected


@pytest.mark.parametrize("quantize", [False, True])
def test_experts_of_gpt_oss(quantize: bool, mixture: Written, kernel_set: KernelSet) -> None:
    """MXFP4 stands for small integers, whose products take rounded activations where those of integer weights do."""
    facts, expected = mixture
    assert "mxfp4" in {tensor.storage for tensor in facts.tensors}
    if quantize and not KERNEL_SETS[kernel_set.name].can_quantize_activations:
        pytest.skip("the set computes in floats")
    found = logits(facts, kernel_set, quantize=quantize)
    if quantize:
        assert deviation(found, expected) < INT8_ACTIVATIONS
    else:
        np.testing.assert_allclose(found, expected, **TIGHT)


@pytest.mark.parametrize("kernel_set", ["reference"], indirect=True)
def test_experts_of_gpt_oss_apart(tmp_path: Path, kernel_set: KernelSet) -> None:
    """Quantized by compressed-tensors, each expert has modules of its own."""
    arguments = {"num_bits": 8, "type": "float", "strategy": "channel"}
    oracle = write_experts_apart(tmp_path, compressed("float-quantized", "f8_channel", arguments))
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
    facts = read_model_facts(tmp_path)
    assert "f8_channel" in {tensor.storage for tensor in facts.tensors}
    np.testing.assert_allclose(logits(facts, kernel_set), expected, **TIGHT)


def test_logits(stored: Written, kernel_set: KernelSet) -> None:
    facts, expected = stored
    found = logits(facts, kernel_set)
    if any(tensor.storage.endswith("_order") for tensor in facts.tensors):
        assert deviation(found, expected) < F16_VALUES
    else:
        np.testing.assert_allclose(found, expected, **TIGHT)


def test_rounded_activations_stay_near(stored: Written, kernel_set: KernelSet) -> None:
    if kernel_set.name == "reference" or not KERNEL_SETS[kernel_set.name].can_quantize_activations:
        pytest.skip("the set computes in floats")
    facts, expected = stored
    assert deviation(logits(facts, kernel_set, quantize=True), expected) < INT8_ACTIVATIONS
