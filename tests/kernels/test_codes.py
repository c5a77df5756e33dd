"""Codes that stand for floats: every code of every book, its scales, and what native packing refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from appliance.kernels.codes import CODE_VALUES, e8m0_to_f32
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import KernelSet
from appliance.kernels.layout import BOOK_LAYOUTS, CODED_LAYOUTS, ROUNDED_INPUT_LAYOUTS, CanonicalWeight, Layout
from appliance.program.operators import Embed, Linear
from tests.kernels.harness import Graph, execution_of, plain_step, random_coded, run_once, whole


def every_code(layout: Layout, scale: np.ndarray) -> CanonicalWeight:
    """A matrix with all codes in each row, but NaN; scale: one a row."""
    if layout is Layout.F8:
        codes = np.arange(256, dtype=np.uint8)
        codes[codes & 127 == 127] = 0
        data = np.tile(codes, (len(scale), 1))
    else:
        data = np.tile(np.arange(0, 16, 2, dtype=np.uint8) * 17 + 16, (len(scale), 1))
    columns = 256 if layout is Layout.F8 else 16
    return CanonicalWeight(layout, len(scale), columns, data, scale.reshape(-1, 1), None, columns)


@pytest.mark.parametrize("layout", CODED_LAYOUTS)
def test_rows_of_a_table_are_the_codes_values(native: CpuKernelSet, layout: Layout) -> None:
    """To the bit, and a product with each column alone is the same."""
    scale = np.random.default_rng(1).uniform(0.1, 3.0, 20).astype(np.float32)
    weight = every_code(layout, scale)
    codes = weight.data if layout is Layout.F8 else np.arange(16)
    expected = np.broadcast_to(CODE_VALUES[layout][codes], (20, weight.in_features)) * scale[:, None]

    def embed(graph: Graph) -> object:
        out = graph.slot(weight.in_features)
        graph.add(Embed(graph.weight(weight), out))
        return out

    found = run_once(native, embed, plain_step(20), execution_of(32))
    np.testing.assert_array_equal(found, expected)

    def multiply(graph: Graph) -> object:
        source, out = graph.given(np.eye(weight.in_features, dtype=np.float32)), graph.slot(20)
        graph.add(Linear(whole(source), graph.weight(weight), whole(out)))
        return out

    columns = run_once(native, multiply, plain_step(weight.in_features), execution_of(weight.in_features))
    np.testing.assert_array_equal(columns, expected.T)


def test_values_are_those_of_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(CODE_VALUES["f8"], codes.view(torch.float8_e4m3fn).float().numpy())
    scales = codes[:255].view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(e8m0_to_f32(codes[:255].numpy()), scales)


INTEGER_BOOKS = [layout for layout in BOOK_LAYOUTS if layout in ROUNDED_INPUT_LAYOUTS]


@pytest.mark.parametrize("rows", [1, 5, 30, 150])
@pytest.mark.parametrize(
    ("layout", "quantize"), [*((each, False) for each in BOOK_LAYOUTS), *((each, True) for each in INTEGER_BOOKS)]
)
def test_scales_that_are_powers_of_two(
    native: CpuKernelSet, reference: KernelSet, layout: Layout, quantize: bool, rows: int
) -> None:
    """As every tile reads them: those of one row and of few, of codes that are decoded once, and of unpacked ones."""
    weight = random_coded(np.random.default_rng(3), layout, 40, 640, 32, np.uint8)
    x = np.random.default_rng(4).standard_normal((rows, 640)).astype(np.float32)

    def build(graph: Graph) -> object:
        out = graph.slot(40)
        graph.add(Linear(whole(graph.given(x)), graph.weight(weight), whole(out)))
        return out

    bounds = execution_of(rows, quantize=quantize)
    expected, found = (run_once(each, build, plain_step(rows), bounds) for each in (reference, native))
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("columns", [64, 1000])
@pytest.mark.parametrize("rows", [1, 2, 6, 40, 150])
@pytest.mark.parametrize("layout", INTEGER_BOOKS)
def test_products_of_integers_are_exact(native: CpuKernelSet, layout: Layout, rows: int, columns: int) -> None:
    """The largest codes meet the largest inputs of both signs: no sum is greater, and none wraps."""
    most, least = (int(np.argmax(sign * CODE_VALUES[layout])) for sign in (1, -1))
    data = np.full((32, columns // 2), most * 17, np.uint8)
    data[1::2] = least * 17
    scale = np.ones((32, 1), np.float32)
    weight = CanonicalWeight(layout, 32, columns, data, scale, None, columns)
    x = np.full((rows, columns), 127, np.float32)
    x[1::2] = -127

    def build(graph: Graph) -> object:
        out = graph.slot(32)
        graph.add(Linear(whole(graph.given(x)), graph.weight(weight), whole(out)))
        return out

    found = run_once(native, build, plain_step(rows), execution_of(rows, quantize=True))
    values = np.where(np.arange(32) % 2 == 0, CODE_VALUES[layout][most], CODE_VALUES[layout][least])
    np.testing.assert_array_equal(found, x[:, :1] * columns * values)


@pytest.mark.parametrize("group", [8, 16, 128, 768])
@pytest.mark.parametrize(
    ("layout", "quantize"), [*((each, False) for each in CODED_LAYOUTS), *((each, True) for each in INTEGER_BOOKS)]
)
def test_a_row_is_the_same_beside_others(native: CpuKernelSet, layout: Layout, quantize: bool, group: int) -> None:
    """To the bit, whether its codes were decoded for it alone, for one tile or for several."""
    weight = random_coded(np.random.default_rng(5), layout, 70, 768, group)
    x = np.random.default_rng(6).standard_normal((160, 768)).astype(np.float32)

    def times(rows: int) -> np.ndarray:
        def build(graph: Graph) -> object:
            out = graph.slot(70)
            graph.add(Linear(whole(graph.given(x[:rows])), graph.weight(weight), whole(out)))
            return out

        return run_once(native, build, plain_step(rows), execution_of(160, quantize=quantize))

    whole_batch = times(160)
    for rows in (1, 2, 3, 6, 7, 12, 13, 25, 60, 145):
        np.testing.assert_array_equal(times(rows), whole_batch[:rows], str(rows))


def test_the_least_scale_of_e8m0(native: CpuKernelSet) -> None:
    """2^-127 is subnormal; the product with a large input is not."""
    weight = CanonicalWeight(
        Layout.E2M1, 16, 32, np.full((16, 16), 0x77, np.uint8), np.zeros((16, 1), np.uint8), None, 32
    )
    x = np.full((1, 32), 2.0**100, np.float32)

    def build(graph: Graph) -> object:
        out = graph.slot(16)
        graph.add(Linear(whole(graph.given(x)), graph.weight(weight), whole(out)))
        return out

    np.testing.assert_array_equal(run_once(native, build, plain_step(1), execution_of()), np.float32(192.0 * 2.0**-27))


REFUSED = {
    "offsets": ({"offset": np.ones((16, 2), np.float32)}, Layout.NF4, np.float32, "have no offsets"),
    "e8m0 of f8": ({}, Layout.F8, np.uint8, "wrong size or type"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_forms_that_are_refused(native: CpuKernelSet, what: str) -> None:
    changes, layout, kind, message = REFUSED[what]
    weight = replace(random_coded(np.random.default_rng(0), layout, 16, 64, 32, kind), **changes)
    graph = Graph()
    x, out = graph.slot(64), graph.slot(16)
    graph.add(Linear(whole(x), graph.weight(weight), whole(out)))
    with pytest.raises(BindError, match=message):
        native.bind(graph.program(out), graph.weights, execution_of())
