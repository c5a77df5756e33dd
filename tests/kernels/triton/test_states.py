"""Operators with recurrent states against the reference set: pieces, states that are copied, and tokens one by one."""

import numpy as np
import pytest

from appliance.kernels.binding import load_kernel_set
from appliance.kernels.execution import Graphs
from appliance.kernels.gpu import graphs
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from tests.kernels.harness import logits_of
from tests.kernels.test_states import MIXERS, make, step_of

# Of each step, the tokens and the pieces of its sequences. Two states are left at ends of blocks, one after no token.
STEPS = (
    (([1, 2, 3, 4, 5, 6], [7], []), ([(4, -1, 3), (0, 3, 4), (2, 4, 0)], [(1, -1, 1)], [])),
    (([8], [9], [10, 11, 12, 13, 14]), ([(1, 0, 0)], [(1, 3, 1)], [(5, 4, 2)])),
    (([15], [16]), ([(1, 1, 1), (0, 1, 5)], [(1, 2, 6)])),
)


@pytest.mark.parametrize("mixer", MIXERS)
def test_steps_are_those_of_the_reference(mixer: str) -> None:
    expected, actual = (
        make(kernel_set, MIXERS[mixer]) for kernel_set in (load_kernel_set("reference"), GpuKernelSet("torch", True))
    )
    for tokens, pieces in STEPS:
        want, got = (logits_of(each, step_of(tokens, pieces)) for each in (expected, actual))
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-4)


def test_decodes_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that pad a step have no pieces, and a graph finds the pieces of each step, however many there are."""
    monkeypatch.setattr(graphs, "LEAST_STEPS", 0)
    expected, actual = (
        make(kernel_set, MIXERS["rg_lru"], graphs=sizes)
        for kernel_set, sizes in (
            (load_kernel_set("reference"), Graphs()),
            (GpuKernelSet("torch", True), Graphs(decode=(4,))),
        )
    )
    assert isinstance(actual, GpuExecutable)
    every = ([(1, -1, 0)], [(1, -1, 1)], [(1, -1, 2)])
    for pieces in (every, ([(1, 0, 3), (0, 3, 0)], [(1, 1, 1)], [(1, 2, 2)]), ([(1, 0, 0)], [(1, 3, 1)], [(1, 2, 2)])):
        step = step_of([[1], [2], [3]], pieces)
        np.testing.assert_allclose(logits_of(actual, step), logits_of(expected, step), atol=2e-5)
    assert actual.graphs.num_captured == 1
