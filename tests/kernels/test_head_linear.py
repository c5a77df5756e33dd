"""A matrix for each head, gates of the attention's output, and factors that grow with the position."""

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import KernelSet
from appliance.kernels.layout import Layout
from appliance.program.attention import HeadLinear, ScaleByPosition
from appliance.program.operators import GatedActivation
from appliance.program.slots import Slot, Span
from tests.kernels.harness import Graph, execution_of, plain_step, random_weight, run_once
from tests.kernels.test_linear import BF16_INPUTS, EXACT, assert_close

HEADS = 5


def random(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((rows, width)).astype(np.float32)


def head_linear(graph: Graph, layout: Layout, rows: int, columns: int, made: int, tail: int) -> Slot:
    x = graph.given(random(rows, 3 + HEADS * (columns + tail)))
    weight = graph.weight(random_weight(np.random.default_rng(1), layout, HEADS * made, columns))
    out = graph.slot(HEADS * (made + tail))
    behind = Span(x, 3 + HEADS * columns, HEADS * tail) if tail else None
    graph.add(HeadLinear(Span(x, 3, HEADS * columns), weight, out, HEADS, behind))
    return out


@pytest.mark.parametrize("rows", [1, 3, 60, 300])  # all heads at a time, some, and one
@pytest.mark.parametrize("layout", [Layout.F32, Layout.BF16, Layout.INT8])
@pytest.mark.parametrize(("columns", "made", "tail"), [(64, 32, 0), (32, 288, 24)])
def test_a_matrix_for_each_head(
    native: CpuKernelSet, reference: KernelSet, layout: Layout, rows: int, columns: int, made: int, tail: int
) -> None:
    want, got = (
        run_once(
            s, lambda graph: head_linear(graph, layout, rows, columns, made, tail), plain_step(rows), execution_of(300)
        )
        for s in (reference, native)
    )
    assert_close(got, want, BF16_INPUTS if layout is Layout.BF16 else EXACT)


def test_a_row_is_the_same_alone(native: CpuKernelSet) -> None:
    def rows(count: int) -> np.ndarray:
        graph = lambda one: head_linear(one, Layout.INT8, 300, 64, 32, 16)  # noqa: E731
        return run_once(native, graph, plain_step(count), execution_of(300, quantize=True))

    np.testing.assert_array_equal(rows(300)[:1], rows(1))


def test_heads_begin_with_a_panel(native: CpuKernelSet) -> None:
    with pytest.raises(BindError, match="no multiple of 16"):
        run_once(native, lambda graph: head_linear(graph, Layout.F32, 2, 32, 24, 0), plain_step(2), execution_of())


@pytest.mark.parametrize("columns", [1, 24, 37])
def test_a_gate_of_each_column(native: CpuKernelSet, reference: KernelSet, columns: int) -> None:
    def build(graph: Graph) -> Slot:
        x, gate = graph.given(random(7, HEADS * columns)), graph.given(9 * random(7, HEADS * columns + 2))
        out = graph.slot(HEADS * columns)
        graph.add(GatedActivation(Span(gate, 1, x.width), Span(x, 0, x.width), out, "sigmoid"))
        return out

    want, got = (run_once(s, build, plain_step(7), execution_of()) for s in (reference, native))
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 1])
def test_a_factor_grows_with_the_position(native: CpuKernelSet, reference: KernelSet, offset: int) -> None:
    def build(graph: Graph) -> Slot:
        x = graph.given(np.ones((5, 40), np.float32))
        graph.add(ScaleByPosition(Span(x, 4, 32), 0.25, 100, offset))
        return x

    step = plain_step(5, [0, 98, 99, 100, 1000])
    want, got = (run_once(s, build, step, execution_of()) for s in (reference, native))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (got[:, 3] == 1).all()
    np.testing.assert_allclose(got[:, 5], 1 + 0.25 * np.log1p([0, 0, offset, 1, 10]), rtol=1e-6)
