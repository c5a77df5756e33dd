"""Several residual streams, factors that are weights, and what keeps the largest of a row."""

from collections.abc import Callable

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import KernelSet
from appliance.program import operators as ops
from appliance.program.routing import ChooseExperts
from appliance.program.slots import Slot, Span
from appliance.program.streams import CorrectStreams, GaussianTopK, MatchMagnitude, MixStreams
from tests.kernels.harness import Graph, dense, execution_of, plain_step, run_once
from tests.kernels.test_operators import ROWS, WIDTHS, values, vector


def mix(graph: Graph, width: int) -> Slot:
    streams = tuple(graph.given(values(width, seed)) for seed in range(4))
    graph.add(MixStreams(streams, graph.given(values(16, 9))), *(ops.Add(each, streams[0]) for each in streams[1:]))
    return streams[0]


def correct(graph: Graph, width: int) -> Slot:
    streams = tuple(graph.given(values(width, seed)) for seed in range(3))
    graph.add(CorrectStreams(streams, graph.given(values(width, 8)), graph.given(values(3, 9))))
    graph.add(ops.Add(streams[0], streams[2]), ops.Add(streams[1], streams[2]))
    return streams[2]


def match_magnitude(graph: Graph, width: int) -> Slot:
    x = graph.given(values(width))
    graph.add(MatchMagnitude(x, graph.given(values(width, 1)), 1e-5))
    return x


def match_a_magnitude_of_nothing(graph: Graph, width: int) -> Slot:
    x = graph.given(1e-4 * values(width))
    graph.add(MatchMagnitude(x, graph.given(values(width, 1)), 1e-5))
    return x


def scale_by_weight(graph: Graph, width: int) -> Slot:
    out = graph.slot(width)
    graph.add(ops.ScaleByWeight(graph.given(values(width)), graph.vector(vector(width)), out))
    return out


def scale_by_one_number_in_place(graph: Graph, width: int) -> Slot:
    x = graph.given(values(width))
    graph.add(ops.ScaleByWeight(x, graph.vector(vector(1)), x, is_one=True))
    return x


def gaussian_top_k(graph: Graph, width: int) -> Slot:
    x = graph.given(values(2 * width + 3) + 1)
    graph.add(GaussianTopK(Span(x, 3, width), 0.7))
    return x


def head_norm_elsewhere(graph: Graph, width: int) -> Slot:
    x = graph.given(values(4 * width + 5))
    graph.add(ops.HeadNorm(Span(x, 5, 2 * width), None, 2, width, 1e-6, out=Span(x, 5 + 2 * width, 2 * width)))
    return x


BUILDERS = [
    mix,
    correct,
    match_magnitude,
    match_a_magnitude_of_nothing,
    scale_by_weight,
    scale_by_one_number_in_place,
    gaussian_top_k,
    head_norm_elsewhere,
]


@pytest.mark.parametrize("width", [*WIDTHS, 523])  # more columns than a block of streams has
@pytest.mark.parametrize("build", BUILDERS, ids=lambda f: f.__name__)
def test_operator(native: CpuKernelSet, reference: KernelSet, build: Callable[[Graph, int], Slot], width: int) -> None:
    want, got = (
        run_once(s, lambda graph: build(graph, width), plain_step(ROWS), execution_of()) for s in (reference, native)
    )
    assert np.abs(want).max() > 0
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=2e-5)


def test_tokens_beyond_a_table_have_one_of_its_rows(native: CpuKernelSet, reference: KernelSet) -> None:
    whole_table, short = (np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32) for rows in (9, 6))

    def build(graph: Graph) -> Slot:
        x, out = graph.slot(40), graph.slot(40)
        graph.add(ops.Embed(graph.weight(dense(whole_table)), x))
        graph.add(ops.Embed(graph.weight(dense(short)), out, missing_row=2))
        return out

    step = plain_step(ROWS)
    step.token_ids = np.array([0, 5, 6, 8, 2, 7, 1], np.int32)
    for kernels in (reference, native):
        got = run_once(kernels, build, step, execution_of())
        np.testing.assert_array_equal(got, short[[0, 5, 2, 2, 2, 2, 1]])


def test_experts_have_factors_of_their_own(native: CpuKernelSet, reference: KernelSet) -> None:
    def build(graph: Graph) -> Slot:
        experts, factors = graph.slot(2, dtype="int32"), graph.slot(2)
        scale = graph.vector(np.arange(1, 7, dtype=np.float32))
        route = ChooseExperts(graph.given(values(6)), experts, factors, "softmax", renormalize=True, expert_scale=scale)
        graph.add(route)
        return factors

    want, got = (run_once(s, build, plain_step(ROWS), execution_of()) for s in (reference, native))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert (want.sum(1) > 1.1).all()


def test_more_streams_than_there_are_places_are_refused(native: CpuKernelSet) -> None:
    def build(graph: Graph) -> Slot:
        streams = tuple(graph.given(values(8, seed)) for seed in range(9))
        graph.add(MixStreams(streams, graph.given(values(81))))
        return streams[0]

    with pytest.raises(BindError, match="9 residual streams"):
        run_once(native, build, plain_step(ROWS), execution_of())


def test_coefficients_of_another_number_of_streams_are_refused(native: CpuKernelSet) -> None:
    def build(graph: Graph) -> Slot:
        streams = tuple(graph.given(values(8, seed)) for seed in range(2))
        graph.add(MixStreams(streams, graph.given(values(3))))
        return streams[0]

    with pytest.raises(BindError, match="coefficients"):
        run_once(native, build, plain_step(ROWS), execution_of())
