"""Replicas that have the experts of a model among them give what one engine with all experts gives, to the bit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.kernels.interface import KernelSet
from appliance.program.placement import ExpertPlacing, ExpertStrategy
from tests.models.tiny_config import VOCAB_SIZE
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of
from tests.parity.ranks import check_equal
from tests.parity.spread import Rounds, bind_replicas

MIXTURES = [
    "afmoe", "deepseek3", "ernie4_5_moe", "gemma4-experts", "gpt-oss", "granitemoe", "jamba", "kimi_linear",
    "lfm2_moe", "llama4", "mixtral", "phimoe", "qwen2_moe-sparse", "qwen3_moe", "qwen3_next",
]  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("strategy", ["linear", "round_robin"])
def test_replicas_equal_one_engine(
    name: str, strategy: ExpertStrategy, tiny: Callable[[str], Checkpoint], spreading: KernelSet
) -> None:
    """Each has sequences of its own; some steps have rows of all, some of one, some of none but an idle one."""
    check_replicas(tiny(name).facts, spreading, ExpertPlacing(strategy), 3 if name == "qwen3_moe" else 2)


@pytest.mark.parametrize("name", MIXTURES)
def test_replicas_of_two_ranks_equal_one_engine(
    name: str, tiny: Callable[[str], Checkpoint], spreading: KernelSet
) -> None:
    """Rows are divided among a replica's ranks, and experts among the ranks of all replicas."""
    check_replicas(tiny(name).facts, spreading, ExpertPlacing(), 2, num_ranks=2)


def check_replicas(
    facts: ModelFacts, kernel_set: KernelSet, placing: ExpertPlacing, count: int, num_ranks: int = 1
) -> None:
    bounds = replace(execution_of(max_model_len=128, num_blocks=64, tokens=64), experts=placing)
    rounds = Rounds(bind_replicas(facts, kernel_set, count, bounds, num_ranks), bounds)
    alone = [Driver(bind(facts, kernel_set, execution=bounds), bounds) for _ in range(count)]
    draws = np.random.default_rng(3)
    prompts = [[int(token) for token in draws.integers(3, VOCAB_SIZE, 40)] for _ in range(count)]
    rows = [
        (driver.sequence(prompt), one.sequence(prompt))
        for driver, one, prompt in zip(rounds.drivers, alone, prompts, strict=True)
    ]
    for _ in range(12):
        lengths = [int(draws.integers(1, 5)) if draws.random() < 0.6 else None for _ in range(count)]
        steps = [
            None if length is None else partial(_step, row=row[0], length=length)
            for row, length in zip(rows, lengths, strict=True)
        ]
        for found, one, row, length in zip(rounds.run(steps), alone, rows, lengths, strict=True):
            if length is not None and found is not None:
                check_equal(kernel_set, found, one.step([(row[1], length)]))
    rounds.close()
    for one in alone:
        one.executable.close()


def _step(driver: Driver, row: object, length: int) -> np.ndarray:
    return driver.step([(row, length)])  # type: ignore[list-item]
