"""Experts in places of any order, and several of one expert: every level gives what they give in order, to the bit."""

from typing import Any

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import StepError
from appliance.kernels.interface import KernelSet
from appliance.program.routing import ChooseExperts, Experts, MixExperts, PlaceExperts
from appliance.program.slots import Slot
from tests.kernels.harness import Graph, dense, execution_of, plain_step, run_once

NUM_EXPERTS, NUM_CHOSEN, HIDDEN, WIDTH, ROWS = 6, 3, 96, 64, 11
PLACED = (3, 0, 5, 1, 4, 2, 0, 3, 0)


def mixture(graph: Graph, placed: tuple[int, ...] | None, num_experts: int = NUM_EXPERTS) -> Slot:
    """A mixture of random experts; placed: which are in each place, and None: they have no places."""
    rng = np.random.default_rng(3)
    x = graph.given(rng.standard_normal((ROWS, HIDDEN)).astype(np.float32))
    logits = graph.given(rng.standard_normal((ROWS, NUM_EXPERTS)).astype(np.float32))
    opened = rng.standard_normal((NUM_EXPERTS, 2 * WIDTH, HIDDEN)).astype(np.float32)
    closed = rng.standard_normal((NUM_EXPERTS, HIDDEN, WIDTH)).astype(np.float32)
    chosen, factors, out = graph.slot(NUM_CHOSEN, dtype="int32"), graph.slot(NUM_CHOSEN), graph.slot(HIDDEN)
    graph.add(ChooseExperts(logits, chosen, factors, "softmax"))
    sizes: dict[str, Any] = {"width": WIDTH, "kind": "silu"}

    def weights(order: list[int]) -> dict[str, Any]:
        both = {"up": opened[order].reshape(-1, HIDDEN), "down": closed[order].reshape(-1, WIDTH)}
        return {name: graph.weight(dense(array)) for name, array in both.items()}

    if placed is None:
        graph.add(Experts(x, chosen, factors, out=out, num_experts=NUM_EXPERTS, **weights([*range(6)]), **sizes))
        return out
    places, apart = graph.slot(NUM_CHOSEN, dtype="int32"), graph.slot(NUM_CHOSEN * HIDDEN)
    graph.add(PlaceExperts(chosen, places, num_experts, placed, 0))
    own = {"own": (0, len(placed)), "num_experts": len(placed)}
    graph.add(Experts(x, places, factors, out=apart, **own, **weights([*placed]), **sizes))
    graph.add(MixExperts(apart, factors, out))
    return out


def test_places_change_nothing(native: CpuKernelSet) -> None:
    want, got = (
        run_once(native, lambda graph, placed=placed: mixture(graph, placed), plain_step(ROWS), execution_of())
        for placed in (None, PLACED)
    )
    np.testing.assert_array_equal(got, want)


def test_places_are_those_of_the_reference(native: CpuKernelSet, reference: KernelSet) -> None:
    want, got = (
        run_once(s, lambda graph: mixture(graph, PLACED), plain_step(ROWS), execution_of()) for s in (reference, native)
    )
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-3)


def test_an_expert_that_is_not_there(native: CpuKernelSet) -> None:
    """A table of fewer experts than the router chooses from ends the step, and writes nowhere."""
    with pytest.raises(StepError, match="an expert that is not there"):
        run_once(native, lambda graph: mixture(graph, (0, 1, 2), 3), plain_step(ROWS), execution_of())
