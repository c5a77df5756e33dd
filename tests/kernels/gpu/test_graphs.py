"""Which steps become graphs, when, and that what pads a step is written nowhere. On torch's CPU device."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from appliance.kernels.execution import Graphs
from appliance.kernels.gpu import graphs
from appliance.kernels.gpu.device import KeptCalls
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.layout import Layout
from tests.kernels.harness import Graph, batch_step, execution_of, logits_of
from tests.kernels.test_program import decoder

SIZES = Graphs(decode=(1, 2, 4, 8), tokens=(4, 16, 64, 4096))  # a step has 64 tokens at most
NUM_SIZES = 7
TABLES = [[9, 3], [30, 1], [2, 4]]
PROMPTS = np.random.default_rng(1).integers(0, 64, (3, 15)).tolist()


class Clock:
    """Seconds that pass with each look at it."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def bound(sizes: Graphs = SIZES, clock: Clock | None = None) -> GpuExecutable:
    graph = Graph()
    execution = dataclasses.replace(execution_of(64), graphs=sizes)
    executable = GpuKernelSet("torch").bind(decoder(graph, Layout.INT8), graph.weights, execution)
    if clock is not None:
        executable._graphs.plain._clock = clock
    executable.run(batch_step(PROMPTS, [0, 0, 0], TABLES, 16))
    return executable


def decode(executable: GpuExecutable, position: int = 15, count: int = 3) -> np.ndarray:
    tokens = [[prompt[0]] for prompt in PROMPTS[:count]]
    return logits_of(executable, batch_step(tokens, [position] * count, TABLES[:count], 16))


def test_a_size_is_captured_behind_its_first_steps() -> None:
    executable, plain = bound(), bound(Graphs())
    counts = []
    for position in range(15, 15 + graphs.LEAST_STEPS + 2):
        np.testing.assert_allclose(decode(executable, position), decode(plain, position), rtol=1e-5, atol=1e-5)
        counts.append(executable.graphs.num_captured)
    assert counts == [0] * graphs.LEAST_STEPS + [1, 1]
    assert executable.graphs.num_planned == NUM_SIZES, "sizes beyond the largest step are left out"


def test_steps_with_a_long_sequence_run_without_graphs() -> None:
    executable = bound(dataclasses.replace(SIZES, max_seq_len=16))
    for _ in range(graphs.LEAST_STEPS + 2):
        decode(executable, 16)  # each has 17 tokens then
    assert executable.graphs.num_captured == 0
    for _ in range(graphs.LEAST_STEPS + 2):
        decode(executable, 15)
    assert executable.graphs.num_captured == 1


def test_capturing_takes_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture takes a second or more of this clock, and the next one waits for as long."""
    monkeypatch.setattr(graphs, "LEAST_STEPS", 0)
    monkeypatch.setattr(graphs, "MOST_SHARE", 0.2)
    executable = bound(clock=Clock(1.0))
    assert executable.graphs.num_captured == 1
    numbers = []
    for _ in range(30):
        decode(executable)
        numbers.append(executable.graphs.num_captured)
    assert numbers[:2] == [1, 1]
    assert numbers[-1] == 2
    assert executable.graphs.seconds >= 2


def test_an_idle_engine_captures_all() -> None:
    executable, plain = bound(), bound(Graphs())
    before = [lane.clone() for lane in executable._caches.lanes]
    rounds = [executable.capture_next() for _ in range(NUM_SIZES + 1)]
    assert rounds == [True] * NUM_SIZES + [False]
    assert executable.graphs.num_captured == NUM_SIZES
    for lane, was in zip(executable._caches.lanes, before, strict=True):
        assert torch.equal(lane[:-1], was[:-1]), "only the spare block is written"
    assert before[0][:-1].any(), "there are keys to be kept"
    np.testing.assert_allclose(decode(executable), decode(plain), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_what_pads_a_step_is_written_nowhere(count: int) -> None:
    executable = bound()
    while executable.capture_next():
        pass
    before = [lane.clone() for lane in executable._caches.lanes]
    decode(executable, count=count)
    blocks = {table[0] for table in TABLES[:count]}
    for lane, was in zip(executable._caches.lanes, before, strict=True):
        changed = (lane[:-1] != was[:-1]).flatten(1).any(1).nonzero().flatten().tolist()
        assert set(changed) == blocks, "the slots of the tokens, and no others"


def test_a_profile_measures_operators_one_by_one() -> None:
    executable = bound()
    while executable.capture_next():
        pass
    seconds = np.zeros(len(executable.operator_work()))
    executable.time_operators(seconds)
    decode(executable)
    assert (seconds > 0).all()


def test_what_cannot_be_captured_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are right all the same, and run operator by operator over the padded size."""

    def refuses(self: KeptCalls, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    executable, plain = bound(), bound(Graphs())
    monkeypatch.setattr(KeptCalls, "capture", refuses)
    for position in range(15, 15 + graphs.LEAST_STEPS + 3):
        np.testing.assert_allclose(decode(executable, position), decode(plain, position), rtol=1e-5, atol=1e-5)
    assert executable.graphs.num_captured == 1
