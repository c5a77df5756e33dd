"""Steps by graphs are the steps without them, in the families whose operators differ in what a graph can hold.

On torch's CPU device a graph calls the same functions over the same memory again.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.engine.boot import boot
from appliance.engine.messages import EngineStats, OutputBatch
from appliance.kernels.execution import Execution, Graphs
from appliance.kernels.gpu import graphs
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from tests.engine.simulator import generate
from tests.models.tiny import VOCAB_SIZE
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of

SIZES = Graphs(decode=(1, 2, 4, 8), tokens=(1, 2, 4, 8, 16, 32))
PARTS = Graphs(tokens=SIZES.tokens)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # products of another number of rows
# Windows and caps; several streams; sinks and experts, which are not captured; recurrent states; latent attention.
CASES = [("gemma2", SIZES), ("gemma2", PARTS), ("gemma3n", SIZES), ("gpt-oss", SIZES), ("qwen3_next", PARTS)]
CASES += [("deepseek3", SIZES)]
generator = np.random.default_rng(5)
PROMPTS = [[int(token) for token in generator.integers(3, VOCAB_SIZE, size)] for size in (7, 19, 1, 12, 5)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size is captured in its first step."""
    monkeypatch.setattr(graphs, "LEAST_STEPS", 0)
    monkeypatch.setattr(graphs, "MOST_SHARE", 1e9)


def bound(facts: ModelFacts, sizes: Graphs) -> tuple[GpuExecutable, Execution]:
    execution = dataclasses.replace(execution_of(max_model_len=64, num_blocks=256), graphs=sizes)
    executable = bind(facts, GpuKernelSet("torch"), execution=execution)
    assert isinstance(executable, GpuExecutable)
    return executable, execution


def traffic(driver: Driver) -> list[np.ndarray]:
    """Prompts that join one after the other and decode together, in chunks and whole, greedily; all logits."""
    rows, found = [], []
    for prompt in PROMPTS:
        rows.append(driver.sequence(prompt))
        for size in (5, 32, 32):
            chunks = [(row, min(size, len(row.token_ids) - row.num_computed)) for row in rows]
            ends = [row.num_computed + count == len(row.token_ids) for row, count in chunks]
            logits = driver.step(chunks, sample=ends)
            found.append(logits)
            for row, best in zip((row for row, end in zip(rows, ends, strict=True) if end), logits, strict=True):
                row.token_ids.append(int(best.argmax()))
    return found


@pytest.mark.parametrize(("family", "sizes"), CASES)
def test_logits_are_those_without_graphs(
    family: str, sizes: Graphs, tiny: Callable[[str], Checkpoint], at_once: None
) -> None:
    facts = tiny(family).facts
    plain, limits = bound(facts, Graphs())
    captured, _ = bound(facts, sizes)
    want, first, again = (traffic(Driver(each, limits)) for each in (plain, captured, captured))
    assert captured.graphs.num_captured >= 5
    assert plain.graphs.num_captured == 0
    for found in (first, again):  # captured, then replayed
        assert len(found) == len(want) == 15
        for own, other in zip(found, want, strict=True):
            np.testing.assert_allclose(own, other, **TOLERANCE)


SPEC = """\
api_version: appliance/v1
kind: Deployment
name: tiny
model: {{source: {source}, max_model_len: 64, skip_tokenizer_init: true, dtype: float32}}
cache: {{dtype: float32, num_blocks: 64, block_size: 16}}
hardware: {{kernels: {{kernel_set: torch, batch_invariant: true}}}}
scheduler: {{max_num_seqs: 4, max_num_batched_tokens: 32}}
"""


@pytest.mark.parametrize("overrides", [(), ("cache.dtype=fp8",)], ids=["floats", "8 bits"])
def test_an_engine_that_captures_answers_as_one_that_does_not(
    overrides: tuple[str, ...], tiny: Callable[[str], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From spec to tokens: graphs of an idle engine, steps that begin before their tokens are known, and rows that
    round alike."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(source=tiny("gemma2").folder))
    want, _ = answers(prepare(spec, (*overrides, "compilation.enforce_eager=true")).plan)
    monkeypatch.setattr(GpuExecutable, "early_rows", 4)
    found, stats = answers(prepare(spec, overrides).plan)
    assert found == want
    assert stats.graphs is not None
    assert (stats.graphs.num_captured, stats.graphs.num_planned) == (7, 7)


def answers(plan: EnginePlan) -> tuple[dict[str, list[int]], EngineStats]:
    loop = boot(plan, lambda phase: None)
    while loop.idle():
        pass
    said: dict[str, list[int]] = {}
    stats = None
    waiting = [generate(f"r{at}", prompt, 9 + 3 * at, temperature=at % 2, seed=at) for at, prompt in enumerate(PROMPTS)]
    while waiting or loop.has_work:
        if waiting:
            loop.handle(b"c", waiting.pop())
        for _, event in loop.step():
            assert isinstance(event, OutputBatch)
            stats = event.stats
            for output in event.outputs:
                assert output.error is None
                said.setdefault(output.request_id, []).extend(output.token_ids)
    loop.close()
    assert stats is not None
    return said, stats
