"""Transformers' code over our cache: the answers of transformers itself, and of our own decoders.

Whole, chunked, batched, from cached prefixes, forked; through the engine with a cache so small that it preempts.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.checkpoint.read import read_model_facts
from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Executable, Lazy
from appliance.kernels.modelling import attention
from appliance.plan.prepare import prepare
from tests.engine.simulator import generate
from tests.engine.test_runner import Engine
from tests.modelling.checkpoints import UNKNOWN, bind, spec_text
from tests.modelling.conftest import Made
from tests.models.tiny import VOCAB_SIZE
from tests.parity import harness
from tests.parity.harness import Driver, by_group, execution_of

OURS = ["llama", "gemma2", "mistral", "gpt2", "qwen3_moe", "gpt-oss"]  # windows, soft caps, positions, experts, sinks
NAMES = [*UNKNOWN, *OURS]
PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, VOCAB_SIZE, 37)]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}


def logits_of(oracle: torch.nn.Module, token_ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        found: np.ndarray = oracle(torch.tensor([token_ids])).logits[0].float().numpy()
    return found


def last(driver: Driver, prompt: list[int]) -> np.ndarray:
    return driver.step([(driver.sequence(prompt), len(prompt))])[0]


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_transformers(name: str, made: Callable[[str], Made]) -> None:
    folder, oracle = made(name)
    expected = logits_of(oracle, PROMPT)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(bind(folder).all_logits(PROMPT), expected, **TOLERANCE)


@pytest.mark.parametrize("name", OURS)
def test_answers_equal_those_of_our_own_decoder(name: str, made: Callable[[str], Made]) -> None:
    folder, _ = made(name)
    execution = execution_of()
    ours = Driver(harness.bind(read_model_facts(folder), load_kernel_set("reference"), execution=execution), execution)
    driver = bind(folder)
    np.testing.assert_allclose(driver.all_logits(PROMPT), ours.all_logits(PROMPT), **TOLERANCE)
    assert driver.greedy(PROMPT[:11], 20) == ours.greedy(PROMPT[:11], 20)


@pytest.mark.parametrize("name", ["vaultgemma", "granitemoeshared", "gemma2", "gpt2"])
def test_chunks_batches_and_cached_prefixes_change_nothing(name: str, made: Callable[[str], Made]) -> None:
    folder, oracle = made(name)
    driver = bind(folder)
    prompts = [list(PROMPT), PROMPT[:9], [*PROMPT[:21], 7, 8, 9], [5]]
    expected = np.stack([logits_of(oracle, prompt)[-1] for prompt in prompts])
    first = driver.sequence(PROMPT)
    for size in (1, 3, 5, 16):
        driver.step([(first, size)], sample=[False])
    rows = [first, driver.sequence(prompts[1]), driver.sequence(prompts[2], shared=first), driver.sequence([5])]
    assert [row.num_computed for row in rows] == [25, 0, 20, 0]
    together = driver.step([(row, len(row.token_ids) - row.num_computed) for row in rows])
    np.testing.assert_allclose(together, expected, **TOLERANCE)
    for row, prompt in zip(rows, prompts, strict=True):
        row.token_ids.append(11)
        prompt.append(11)
    decoded = driver.step([(row, 1) for row in rows])
    np.testing.assert_allclose(decoded, np.stack([logits_of(oracle, each)[-1] for each in prompts]), **TOLERANCE)


def test_copied_blocks_serve_a_fork(made: Callable[[str], Made]) -> None:
    folder, oracle = made("vaultgemma")
    driver = bind(folder)
    parent = driver.sequence(PROMPT)
    driver.step([(parent, len(PROMPT))])
    fork = driver.sequence([*PROMPT, 50], with_blocks=True)
    sources, targets = (by_group(np.array(row.blocks)).reshape(-1).tolist() for row in (parent, fork))
    driver.executable.copy_blocks(list(zip(sources, targets, strict=True)))
    assert isinstance(driver.executable, Lazy)
    driver.executable.prefault(targets[0])
    fork.num_computed = len(PROMPT)
    np.testing.assert_allclose(driver.step([(fork, 1)])[0], logits_of(oracle, [*PROMPT, 50])[-1], **TOLERANCE)


def test_queries_that_attend_in_turns_change_nothing(
    made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vaultgemma", "llama"):  # with a soft cap, and without
        folder, oracle = made(name)
        driver = bind(folder)
        monkeypatch.setattr(attention, "MOST_QUERIES", 5)
        np.testing.assert_allclose(driver.all_logits(PROMPT), logits_of(oracle, PROMPT), **TOLERANCE)


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 0.35), ("f16", 0.05)])
def test_fewer_bits_round_as_they_may(dtype: str, most: float, made: Callable[[str], Made]) -> None:
    folder, oracle = made("vaultgemma")
    expected = logits_of(oracle, PROMPT)
    found = bind(folder, dtype=dtype).all_logits(PROMPT)
    assert 0 < np.abs(found - expected).max() < most
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


def test_a_step_out_of_bounds_is_refused_before_it_runs(made: Callable[[str], Made]) -> None:
    driver = bind(made("llama")[0])
    assert last(driver, PROMPT[:3]).shape == (VOCAB_SIZE,)
    with pytest.raises(StepError, match=f"token {VOCAB_SIZE} is out of bounds"):
        last(driver, [VOCAB_SIZE])
    late = driver.sequence([5] * 129)
    late.num_computed = 128
    with pytest.raises(StepError, match="position 128 is out of bounds"):
        driver.step([(late, 1)])


CROWD = [
    generate("a", PROMPT[:28], 20, temperature=0.0),
    generate("b", [*PROMPT[:20], 50, 51, 52], 20, seed=2, n=2, temperature=0.8),
    generate("c", [*PROMPT[:20], 53, 54], 20, seed=3, temperature=0.8),
    generate("d", [9, 8, 7], 20, temperature=0.0),
]
KEYS = [("a", 0), ("b", 0), ("b", 1), ("c", 0), ("d", 0)]
SETTINGS = "cache: {block_size: 8, dtype: float32}\nhardware: {memory: {kv_cache: 8MiB}, num_threads: 1}\n"


def planned(folder: Path, model_impl: str, spec: Path) -> tuple[SchedulerConfig, Executable]:
    spec.write_text(spec_text(folder, SETTINGS, f", model_impl: {model_impl}"))
    plan = prepare(spec, ["hardware.kernels.kernel_set=reference"] if model_impl == "appliance" else []).plan
    assert (plan.model.modelling is None) == (model_impl == "appliance")
    config = SchedulerConfig.from_plan(plan)
    return config, load_backend(plan, config, lambda *_: None).executable


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_engine_answers_as_with_our_own_decoder_also_after_preemption(
    name: str, made: Callable[[str], Made], tmp_path: Path
) -> None:
    folder, _ = made(name)
    config, executable = planned(folder, "appliance", tmp_path / "ours.yaml")
    ours = Engine(config, executable=executable, vocab=VOCAB_SIZE).run(*CROWD)
    expected = {key: ours.tokens(*key) for key in KEYS}
    config, executable = planned(folder, "transformers", tmp_path / "theirs.yaml")
    roomy = Engine(config, executable=executable, vocab=VOCAB_SIZE).run(*CROWD)
    assert {key: roomy.tokens(*key) for key in KEYS} == expected
    num_blocks = 8 * len(config.windows)
    tight = replace(config, num_blocks=num_blocks, max_num_batched_tokens=7, max_num_seqs=4, expected_output=0)
    engine = Engine(tight, executable=executable, vocab=VOCAB_SIZE).run(*CROWD)
    assert {key: engine.tokens(*key) for key in KEYS} == expected
    assert engine.scheduler.stats(0.0).num_preemptions
    assert engine.run(CROWD[0]).tokens("a") == expected["a", 0]
