"""Every family against transformers: logits after every token, and greedy tokens."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.interface import KernelSet
from tests.models.tiny import FAMILIES, VARIANTS, VOCAB_SIZE, make_tiny
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.rounding import assert_logits_close, rounds_inputs

PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, VOCAB_SIZE, 37)]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}  # f32 sums in another order; logits are of size 1 to 10


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_logits_equal_those_of_transformers(
    name: str, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet
) -> None:
    checkpoint = tiny(name)
    # Up to the original context of Phi-3's longrope, where transformers takes the short factors too.
    bounds = execution_of(max_model_len=64)
    driver = Driver(bind(checkpoint.facts, kernel_set, execution=bounds), bounds)
    expected = checkpoint.logits(PROMPT).numpy()
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(driver.all_logits(PROMPT), expected, **TOLERANCE)


@pytest.mark.many_cases
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(
    name: str, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet
) -> None:
    checkpoint = tiny(name)
    bounds = execution_of(max_model_len=64)
    driver = Driver(bind(checkpoint.facts, kernel_set, execution=bounds), bounds)
    prompt, count = PROMPT[:13], 20
    expected = list(prompt)
    for _ in range(count):
        expected.append(int(checkpoint.logits(expected)[-1].argmax()))
    assert driver.greedy(prompt, count) == expected[len(prompt) :]


def test_longrope_takes_the_long_factors_where_sequences_may_pass_the_original_context(
    tiny: Callable[[str], Checkpoint], kernel_set: KernelSet
) -> None:
    checkpoint = tiny("phi3")
    prompt = [int(token) for token in np.random.default_rng(5).integers(3, VOCAB_SIZE, 80)]
    bounds = execution_of(max_model_len=128)
    driver = Driver(bind(checkpoint.facts, kernel_set, execution=bounds), bounds)
    expected = checkpoint.logits(prompt)  # 80 tokens: beyond the 64 of the original context
    np.testing.assert_allclose(driver.all_logits(prompt), expected.numpy(), **TOLERANCE)


def test_a_bf16_checkpoint_runs_as_stored(kernel_set: KernelSet, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bf16")
    make_tiny("llama", folder, change=lambda model: model.to(torch.bfloat16))
    facts = read_model_facts(folder)
    assert {tensor.storage for tensor in facts.tensors} == {"bf16"}
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    bounds = execution_of(max_model_len=64)
    driver = Driver(bind(facts, kernel_set, execution=bounds), bounds)
    assert_logits_close(driver.all_logits(PROMPT), oracle, PROMPT, TOLERANCE, rounds_inputs(kernel_set))
