"""One sequence gives one answer: whole or in chunks, alone or in a batch, from a cold or a cached prefix.

The paged run is also the run against transformers, which keeps whole sequences (test_families.py).
"""

from collections.abc import Callable

import numpy as np
import pytest

from appliance.kernels.interface import KernelSet
from tests.models.tiny import VOCAB_SIZE
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, by_group, execution_of

pytestmark = pytest.mark.many_cases

# Full, windowed, mixed and learned positions; experts with a shared block, in groups; sinks; chunks; latents; states;
# keys and values of another layer, inputs of each layer, several streams; a block that layers share; experts chosen one
# after the other; a learned activation; the delta rule by head and by channel.
NAMES = ["llama", "mistral", "gemma2", "gemma3", "gpt2", "qwen2_moe", "glm4_moe", "gpt-oss", "llama4", "deepseek3"]
NAMES += ["jamba", "falcon_h1", "lfm2", "gemma3n", "gemma4", "gemma4-experts", "zamba2", "recurrentgemma"]
NAMES += ["phimoe", "apertus", "qwen3_5", "kimi_linear", "mimo2"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # sums over rows of another shape


def prompts(count: int, seed: int = 11) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [[int(t) for t in generator.integers(3, VOCAB_SIZE, generator.integers(1, 41))] for _ in range(count)]


@pytest.fixture
def driver(request: pytest.FixtureRequest, tiny: Callable[[str], Checkpoint], kernel_set: KernelSet) -> Driver:
    bounds = execution_of(max_model_len=128, num_blocks=256, tokens=512)
    return Driver(bind(tiny(request.param).facts, kernel_set, execution=bounds), bounds)


def last_logits(driver: Driver, prompt: list[int]) -> np.ndarray:
    return driver.step([(driver.sequence(prompt), len(prompt))])[0]


@pytest.mark.parametrize("driver", NAMES, indirect=True)
def test_chunked_equals_whole(driver: Driver) -> None:
    prompt = prompts(1, seed=2)[0] * 2
    whole = last_logits(driver, prompt)
    for size in (1, 3, 5, 16):
        sequence = driver.sequence(prompt)
        while (left := len(prompt) - sequence.num_computed) > size:
            nothing = driver.step([(sequence, size)], sample=[False])
            assert len(nothing) == 0
        np.testing.assert_allclose(driver.step([(sequence, left)])[0], whole, **TOLERANCE)


@pytest.mark.parametrize("driver", NAMES, indirect=True)
def test_batched_equals_alone(driver: Driver) -> None:
    """Prefill, chunks in the middle of a prompt and decode, all in one step."""
    several = prompts(8)
    alone = [last_logits(driver, prompt) for prompt in several]
    rows = [driver.sequence(prompt) for prompt in several]
    for row in rows[::2]:
        if len(row.token_ids) > 1:
            driver.step([(row, (len(row.token_ids) + 1) // 2)], sample=[False])
    together = driver.step([(row, len(row.token_ids) - row.num_computed) for row in rows])
    np.testing.assert_allclose(together, np.stack(alone), **TOLERANCE)


@pytest.mark.parametrize("driver", NAMES, indirect=True)
def test_greedy_in_a_batch_of_16_equals_alone(driver: Driver) -> None:
    several, count = prompts(16, seed=4), 8
    alone = [driver.greedy(prompt, count) for prompt in several]
    rows = [driver.sequence(prompt) for prompt in several]
    made: list[list[int]] = [[] for _ in rows]
    for _ in range(count):
        logits = driver.step([(row, len(row.token_ids) - row.num_computed) for row in rows])
        for row, tokens, best in zip(rows, made, logits.argmax(axis=1), strict=True):
            tokens.append(int(best))
            row.token_ids.append(int(best))
    assert made == alone


@pytest.mark.parametrize("driver", NAMES, indirect=True)
def test_cached_prefix_equals_cold(driver: Driver) -> None:
    shared, ends = [5, 9, 17, 33, 65, 129, 7, 12, 99, 200, 31], ([4, 8, 15], [16, 23, 42, 108, 4])
    first = driver.sequence([*shared, 77])
    driver.step([(first, len(first.token_ids))])
    for end in ends:
        prompt = [*shared, *end]
        warm = driver.sequence(prompt, shared=first)
        assert warm.num_computed == 8
        warm_logits = driver.step([(warm, len(prompt) - warm.num_computed)])[0]
        np.testing.assert_allclose(warm_logits, last_logits(driver, prompt), **TOLERANCE)


@pytest.mark.parametrize("driver", ["llama"], indirect=True)
def test_copied_blocks_serve_a_fork(driver: Driver) -> None:
    prompt = prompts(1, seed=9)[0] + [3] * 6
    parent = driver.sequence(prompt)
    driver.step([(parent, len(prompt))])
    fork = driver.sequence([*prompt, 50], with_blocks=True)
    sources, targets = (by_group(np.array(row.blocks)).reshape(-1).tolist() for row in (parent, fork))
    driver.executable.copy_blocks(list(zip(sources, targets, strict=True)))
    fork.num_computed = len(prompt)
    np.testing.assert_allclose(driver.step([(fork, 1)])[0], last_logits(driver, [*prompt, 50]), **TOLERANCE)


@pytest.mark.parametrize("driver", ["llama"], indirect=True)
def test_prompt_logits_of_several_rows_of_one_sequence(driver: Driver) -> None:
    prompt = prompts(1, seed=6)[0] + [9, 8, 7]
    every = driver.all_logits(prompt)
    for length in (1, len(prompt) // 2, len(prompt)):
        np.testing.assert_allclose(every[length - 1], last_logits(driver, prompt[:length]), **TOLERANCE)
