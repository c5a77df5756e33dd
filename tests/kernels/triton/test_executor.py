"""The executor with Triton's kernels, under the interpreter: whole models, chunk by chunk and token by token."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.read import read_model_facts
from appliance.kernels.gpu import matrices
from appliance.kernels.gpu.kernel_set import GpuKernelSet
from tests.kernels.triton.interpreted import numpy_rounds_alike
from tests.models.tiny import VOCAB_SIZE, make_tiny
from tests.parity.harness import Driver, bind, execution_of, precision

PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, VOCAB_SIZE, 9)]
# Windows and caps; sinks, biases and experts; latent attention; the gated delta rule and short convolutions.
FAMILIES = ("gemma2", "gpt-oss", "deepseek3", "qwen3_next")


@pytest.fixture(scope="module")
def with_triton() -> GpuKernelSet:
    return GpuKernelSet("torch", with_triton=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, with_triton: GpuKernelSet, tmp_path: Path) -> None:
    oracle = make_tiny(family, tmp_path)
    limits = execution_of(max_model_len=64, block_size=16)
    driver = Driver(bind(read_model_facts(tmp_path), with_triton, execution=limits), limits)
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
    row = driver.sequence(PROMPT)
    for end in (4, 5, 8):  # a prompt, a token, a chunk, and a token
        [logits] = driver.step([(row, end - row.num_computed)])
        np.testing.assert_allclose(logits, expected[end - 1], rtol=3e-4, atol=3e-4)


def test_quantized_weights_are_multiplied_as_they_are(
    with_triton: GpuKernelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of int4 with offsets, read in pieces: the same numbers as the executor's that makes floats of them."""
    monkeypatch.setattr(matrices, "PIECE_BYTES", 4096)
    make_tiny("llama", tmp_path)
    facts = read_model_facts(tmp_path)
    form = WeightForm("int4", group_size=32, has_offset=True)
    limits, logits = execution_of(max_model_len=64, block_size=16), []
    for kernel_set in (with_triton, GpuKernelSet("torch")):
        plan = precision(facts, quantize=form)
        driver = Driver(bind(facts, kernel_set, plan, limits), limits)
        row = driver.sequence(PROMPT)
        logits.append([driver.step([(row, end - row.num_computed)])[0] for end in (8, 9)])
    np.testing.assert_allclose(logits[0], logits[1], rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("family", ["gpt-oss"])
def test_rows_round_alike_where_that_is_asked_for(family: str, with_triton: GpuKernelSet, tmp_path: Path) -> None:
    """Alone and whole, beside another sequence, in chunks, and as a decode: to the bit, where products are."""
    make_tiny(family, tmp_path)
    limits = execution_of(max_model_len=64, block_size=16)
    limits = dataclasses.replace(limits, numerics=dataclasses.replace(limits.numerics, batch_invariant=True))
    driver = Driver(bind(read_model_facts(tmp_path), with_triton, execution=limits), limits)
    [alone] = driver.step([(driver.sequence(PROMPT), len(PROMPT))])
    other, row = driver.sequence(PROMPT[3:6]), driver.sequence(PROMPT)
    driver.step([(other, 2), (row, 3)])
    driver.step([(row, 5), (other, 1)])
    [decoded] = driver.step([(row, 1)])
    np.testing.assert_allclose(decoded, alone, rtol=3e-4, atol=3e-4)
    if not numpy_rounds_alike():
        pytest.skip("NumPy rounds a row by its place on this processor")
    np.testing.assert_array_equal(decoded, alone)
