"""Steps with adapters run as graphs: which adapter a sequence has, and its scale, are numbers of the step."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.execution import Graphs
from appliance.kernels.gpu import graphs
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.interface import StepInputs, WeightChange
from tests.kernels.harness import Graph, logits_of
from tests.kernels.test_adapters import RANKS, WIDTHS, execution, maps, programs, step

DECODES = [step(slots, [1] * len(slots), scales) for slots, scales in (
    ([0, -1, 2], [1.0, 1.0, 0.5]), ([2, 1, 0], [1.0, -1.0, 1.0]), ([0], [1.0]),
)]  # fmt: skip
PROMPT, OTHER_PROMPT = step([1, 0], [3, 2]), step([2, -1, 0, 0], [2, 1, 2, 1], [0.5, 1.0, -1.0, 1.0])


def bound(sizes: Graphs) -> GpuExecutable:
    graph = Graph()
    plain, adapted = programs(graph, 64)
    made = replace(execution(), graphs=sizes)
    executable = GpuKernelSet("torch", with_triton=True).bind(plain, graph.weights, made, adapted=adapted)
    for slot in RANKS:
        executable.put_adapter(slot, maps(slot, 64, "f32"))
    return executable


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[GpuExecutable, GpuExecutable]:
    """One that captures at once, and one that never does."""
    monkeypatch.setattr(graphs, "LEAST_STEPS", 0)
    monkeypatch.setattr(graphs, "MOST_SHARE", 1e9)
    return bound(Graphs(decode=(1, 4), tokens=(8,))), bound(Graphs())


def check(both: tuple[GpuExecutable, GpuExecutable], inputs: StepInputs) -> None:
    got, want = (logits_of(executable, inputs) for executable in both)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_graphs_read_the_adapters_of_each_step(both: tuple[GpuExecutable, GpuExecutable]) -> None:
    for inputs in (*DECODES, PROMPT, OTHER_PROMPT, DECODES[0]):
        check(both, inputs)
        check(both, replace(inputs, adapters=None))
    adapted = both[0]._graphs.adapted
    assert adapted is not None
    assert adapted.report.num_captured == 3, "decodes of 1 and of 4, and prompts"
    assert both[0].graphs.num_captured == 6
    assert both[0].graphs.num_planned == 6


def test_graphs_read_an_adapter_that_took_the_place_of_another(both: tuple[GpuExecutable, GpuExecutable]) -> None:
    check(both, DECODES[0])
    for executable in both:
        executable.put_adapter(0, maps(1, 64, "f32"))
        executable.drop_adapter(2)
    for inputs in DECODES:
        check(both, inputs)


def test_an_idle_engine_captures_steps_with_adapters(both: tuple[GpuExecutable, GpuExecutable]) -> None:
    while both[0].capture_next():
        pass
    adapted = both[0]._graphs.adapted
    assert adapted is not None
    assert adapted.report.num_captured == 3
    for inputs in (*DECODES, PROMPT):
        check(both, inputs)


def test_what_is_not_low_rank_is_in_no_graph(both: tuple[GpuExecutable, GpuExecutable]) -> None:
    shift = np.random.default_rng(1).standard_normal(WIDTHS["k"]).astype(np.float32)
    check(both, DECODES[0])
    for executable in both:
        executable.put_adapter(1, maps(1, 64, "f32") | {"k": WeightChange(None, None, None, shift)})
    for inputs in DECODES:
        check(both, inputs)


def test_adapters_are_found_after_a_sleep(both: tuple[GpuExecutable, GpuExecutable]) -> None:
    want = [logits_of(both[1], inputs) for inputs in DECODES]
    check(both, DECODES[0])
    both[0].sleep(keep_weights=True)
    taken = [np.ones(1 << 16, np.float32) for _ in range(64)]  # of what was given back
    both[0].wake_weights(None)
    both[0].wake_caches()
    table = both[0]._adapters
    assert table is not None
    assert len(taken) == 64
    held = {tensor.data_ptr() for tensor in table.tensors()}
    assert set(table._on_device[..., :2].flatten().tolist()) - {0} == held
    for inputs, expected in zip(DECODES, want, strict=True):
        np.testing.assert_allclose(logits_of(both[0], inputs), expected, rtol=1e-6, atol=1e-6)
