"""With `batch_invariant`, rows of the executor on torch round alike in every batch, chunk and graph: to the bit.

Each test fails where only one operator of a family rounds by its neighbours.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.kernels.execution import Execution, Graphs
from appliance.kernels.gpu import graphs as capturing
from appliance.kernels.gpu.kernel_set import GpuKernelSet
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, Row, bind, execution_of
from tests.parity.test_batching import prompts

# Windows, caps and norms of heads; experts and sinks; latent attention; several streams; learned positions.
FAMILIES = ("gemma2", "gpt-oss", "deepseek3", "gemma3n", "gpt2")
SIZES = Graphs(decode=(1, 2, 4, 8, 16), tokens=(1, 2, 4, 8, 16, 32, 64))


def driver_of(facts: ModelFacts, sizes: Graphs | None = None, *, with_triton: bool = False, **changes: int) -> Driver:
    execution = invariant(sizes or Graphs(), **changes)
    return Driver(bind(facts, GpuKernelSet("torch", with_triton), execution=execution), execution)


def invariant(sizes: Graphs, **changes: int) -> Execution:
    limits = execution_of(**({"max_model_len": 128, "num_blocks": 256, "tokens": 512} | changes))
    return dataclasses.replace(
        limits, graphs=sizes, numerics=dataclasses.replace(limits.numerics, batch_invariant=True)
    )


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "LEAST_STEPS", 0)
    monkeypatch.setattr(capturing, "MOST_SHARE", 1e9)


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_in_a_batch_in_chunks_and_token_by_token(family: str, tiny: Callable[[str], Checkpoint]) -> None:
    driver, several = driver_of(tiny(family).facts), prompts(5)
    alone = [driver.step([(driver.sequence(prompt), len(prompt))])[0] for prompt in several]
    together = driver.step([(driver.sequence(prompt), len(prompt)) for prompt in several])
    np.testing.assert_array_equal(together, np.stack(alone))
    for size in (1, 5):
        rows = [driver.sequence(prompt) for prompt in several]
        while any(left_of(row) > size for row in rows):
            driver.step([(row, size) for row in rows if left_of(row) > size], sample=None)
        np.testing.assert_array_equal(driver.step([(row, left_of(row)) for row in rows]), np.stack(alone))


def left_of(row: Row) -> int:
    return len(row.token_ids) - row.num_computed


@pytest.mark.parametrize("family", ["gemma2", "deepseek3"])
def test_graphs_of_any_size_change_nothing(family: str, tiny: Callable[[str], Checkpoint], at_once: None) -> None:
    facts, several = tiny(family).facts, prompts(5)
    plain, captured = driver_of(facts), driver_of(facts, SIZES)
    for count in (1, 3, 5):
        found = [
            [each.continue_greedily(each.sequence(prompt), 4) for prompt in several[:count]]
            for each in (plain, captured)
        ]
        assert found[0] == found[1]
    rows = [[each.sequence(prompt) for prompt in several] for each in (plain, captured)]
    for _ in range(3):
        logits = [
            each.step([(row, left_of(row)) for row in own]) for each, own in zip((plain, captured), rows, strict=True)
        ]
        np.testing.assert_array_equal(logits[0], logits[1])
        for own in rows:
            for row, best in zip(own, logits[0].argmax(1), strict=True):
                row.token_ids.append(int(best))


def test_without_it_rows_round_by_their_neighbours(tiny: Callable[[str], Checkpoint]) -> None:
    """What the tests above compare differs where nothing is done for it."""
    limits = execution_of(max_model_len=128, num_blocks=256, tokens=512)
    driver = Driver(bind(tiny("gemma2").facts, GpuKernelSet("torch"), execution=limits), limits)
    several = prompts(5)
    alone = [driver.step([(driver.sequence(prompt), len(prompt))])[0] for prompt in several]
    together = driver.step([(driver.sequence(prompt), len(prompt)) for prompt in several])
    assert not np.array_equal(together, np.stack(alone))
