"""Linear over every layout, batch size and odd shape, against the reference."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import KernelSet
from appliance.kernels.layout import CODED_LAYOUTS, ROUNDED_INPUT_LAYOUTS, CanonicalWeight, Layout
from appliance.program.operators import Linear
from appliance.program.slots import Slot, Span
from tests.kernels.harness import (
    GROUP_UNITS,
    Graph,
    bind,
    dense,
    execution_of,
    logits_of,
    plain_step,
    random_quantized,
    random_sub_groups,
    random_weight,
    run_once,
    whole,
)

pytestmark = pytest.mark.many_cases

BF16_INPUTS = 6e-3  # relative to the largest output: levels with a bf16 dot product round inputs to 8 bits
EXACT = 2e-4

MIN_TALL_ROWS = 145  # the fewest for which VNNI unpacks codes; see min_tall_rows in linear.cpp
SHAPES = [
    (1, 64, 32),
    (17, 96, 16),
    (20, 1040, 8),
    (70, 256, 64),
    (130, 1280, 128),
    (40, 640, 32),
    (33, 1000, 1000),
    (64, 1280, 1280),
]
CASES = [
    (Layout.F32, False, "none"),
    (Layout.F16, False, "none"),
    (Layout.BF16, False, "none"),
    (Layout.INT8, False, "none"),
    (Layout.INT4, False, "symmetric"),
    (Layout.INT8, True, "none"),
    (Layout.INT8, True, "free"),
    (Layout.INT4, True, "none"),
    (Layout.INT4, True, "symmetric"),
    (Layout.INT4, True, "free"),
    *((layout, True, offset) for layout in GROUP_UNITS for offset in ("none", "symmetric", "free")),
    *((layout, False, offset) for layout in GROUP_UNITS for offset in ("symmetric", "free")),
    *((layout, True, "none") for layout in CODED_LAYOUTS),
    *((layout, False, "none") for layout in CODED_LAYOUTS if layout in ROUNDED_INPUT_LAYOUTS),
]


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def compare(
    native: CpuKernelSet,
    reference: KernelSet,
    weight: CanonicalWeight,
    rows: int,
    quantize: bool,
    constant: float | None = None,
    **fields: object,
) -> None:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, weight.in_features)).astype(np.float32)
    if constant is not None:
        x[:] = constant
    initial = rng.standard_normal((rows, weight.out_features)).astype(np.float32)
    bias = rng.standard_normal(weight.out_features).astype(np.float32)

    def build(graph: Graph) -> Slot:
        source, out = graph.given(x), graph.given(initial)
        graph.add(Linear(whole(source), graph.weight(weight), whole(out), graph.vector(bias), **fields))  # type: ignore[arg-type]  # keyword fields of Linear
        return out

    bounds = execution_of(MIN_TALL_ROWS + 3, quantize=quantize)
    expected, actual = (run_once(s, build, plain_step(rows), bounds) for s in (reference, native))
    assert_close(actual, expected, BF16_INPUTS if weight.layout is Layout.BF16 else EXACT)


@pytest.mark.parametrize("rows", [1, 2, 5, 13, 50, 64, MIN_TALL_ROWS])
@pytest.mark.parametrize(("layout", "quantize", "offset"), CASES)
def test_every_layout_and_shape(
    native: CpuKernelSet, reference: KernelSet, layout: Layout, quantize: bool, offset: str, rows: int
) -> None:
    rng = np.random.default_rng(0)
    unit = GROUP_UNITS.get(layout, 1)
    shapes = [(n, k, group) for n, k, group in SHAPES if 256 % group == 0 and group % unit == 0] if unit > 1 else SHAPES
    for n, k, group_size in shapes:
        compare(native, reference, random_weight(rng, layout, n, k, group_size, offset), rows, quantize)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("layout", "quantize", "offset"), CASES)
def test_many_columns(
    native: CpuKernelSet, reference: KernelSet, layout: Layout, quantize: bool, offset: str, rows: int
) -> None:
    """Even a row that is read in place is multiplied in parts, of which the last is shorter."""
    rng = np.random.default_rng(5)
    for group_size in (128,) if layout in GROUP_UNITS else (128, 4352):
        compare(native, reference, random_weight(rng, layout, 20, 4352, group_size, offset), rows, quantize)


@pytest.mark.parametrize(("layout", "quantize", "offset"), CASES)
def test_a_row_is_the_same_in_every_batch(native: CpuKernelSet, layout: Layout, quantize: bool, offset: str) -> None:
    """Every tile gives the same bits, so that a request's result does not depend on the batch."""
    rng = np.random.default_rng(2)
    unit = GROUP_UNITS.get(layout, 1)
    x = rng.standard_normal((MIN_TALL_ROWS + 3, 1280)).astype(np.float32)
    for group_size in (32, 128, 1280):
        if unit > 1 and (256 % group_size or group_size % unit):
            continue
        weight = random_weight(rng, layout, 70, 1280, group_size, offset)
        batch = times(native, weight, x, quantize)
        for rows in (1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 25, 60, 61, MIN_TALL_ROWS - 1, MIN_TALL_ROWS):
            np.testing.assert_array_equal(
                times(native, weight, x[:rows], quantize), batch[:rows], f"{group_size}, {rows}"
            )


SUB_GROUPS = [(Layout.INT4, 32), (Layout.INT4, 16), (Layout.INT5, 32), (Layout.INT6, 32), (Layout.INT6, 16)]


@pytest.mark.parametrize("offset", ["none", "symmetric", "free"])
@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize(("layout", "size"), SUB_GROUPS)
def test_sub_groups(
    native: CpuKernelSet, reference: KernelSet, layout: Layout, size: int, quantize: bool, offset: str
) -> None:
    rng = np.random.default_rng(8)
    for n, k in ((1, 256), (40, 1280), (70, 512)):
        weight = random_sub_groups(rng, layout, n, k, size, offset)
        for rows in (1, 2, 5, 13, 50, MIN_TALL_ROWS):
            compare(native, reference, weight, rows, quantize)


@pytest.mark.parametrize("offset", ["none", "symmetric", "free"])
@pytest.mark.parametrize(("layout", "size"), SUB_GROUPS)
def test_a_row_of_sub_groups_is_the_same_in_every_batch(
    native: CpuKernelSet, layout: Layout, size: int, offset: str
) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((MIN_TALL_ROWS + 3, 2048)).astype(np.float32)
    x[7], x[40, 256:512] = 1, -1  # their sub-groups' products need more than 16 bits
    x[21], x[33] = np.tile([1, 1, 0, 0], 512), np.tile([0, 0, -1, -1], 512)  # these in one of AVX2's two sums alone
    weight = random_sub_groups(rng, layout, 70, 2048, size, offset)
    batch = times(native, weight, x, quantize=True)
    for rows in (1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 60, MIN_TALL_ROWS - 1, MIN_TALL_ROWS):
        np.testing.assert_array_equal(times(native, weight, x[:rows], quantize=True), batch[:rows], str(rows))


@pytest.mark.parametrize("factor", [-128, 127])
@pytest.mark.parametrize("rows", [1, 4, 40, MIN_TALL_ROWS])
@pytest.mark.parametrize(("layout", "size"), SUB_GROUPS)
def test_extreme_factors_do_not_overflow(
    native: CpuKernelSet, reference: KernelSet, layout: Layout, size: int, factor: int, rows: int
) -> None:
    weight = random_sub_groups(np.random.default_rng(1), layout, 40, 512, size)
    codes = {Layout.INT4: 0xFF, Layout.INT5: 31, Layout.INT6: 63}[layout]
    factors = np.full_like(weight.sub_scale, factor)
    extreme = replace(weight, data=np.full_like(weight.data, codes), sub_scale=factors, sub_offset=factors)
    for x in (1.0, -1.0):
        compare(native, reference, extreme, rows, quantize=True, constant=x)


@pytest.mark.parametrize("offset", ["none", "free"])
@pytest.mark.parametrize(("layout", "size"), SUB_GROUPS)
def test_sums_of_sixteen_bits_are_exact_to_the_last(
    native: CpuKernelSet, layout: Layout, size: int, offset: str
) -> None:
    """The least and largest codes meet inputs for which a sub-group's sum just fits, or just does not fit, 16 bits."""
    weight = random_sub_groups(np.random.default_rng(3), layout, 70, 512, size, offset)
    largest, last = {Layout.INT4: (15, 0xFF), Layout.INT5: (31, 31), Layout.INT6: (63, 63)}[layout]
    data = np.zeros_like(weight.data)
    data[::2] = last
    weight = replace(weight, data=data)
    for magnitude in (largest, (largest + 1) // 2):  # of codes, and of codes with a zero point in the middle
        for more in (-1, 0, 1):
            full, rest = divmod(32767 // magnitude + more, 127)
            part = np.array(
                [127] * min(full, size) + [rest] * (full < size) + [0] * max(0, size - full - 1), np.float32
            )
            for x in (part, -part, np.where(np.arange(size) % 2, part, -part)):
                same = np.tile(x, (MIN_TALL_ROWS, 512 // size))  # neighbours would decide, too
                batch = times(native, weight, same, quantize=True)
                alone = times(native, weight, same[:1], quantize=True)
                np.testing.assert_array_equal(batch, np.repeat(alone, MIN_TALL_ROWS, 0), f"{magnitude}, {more}, {x}")


@pytest.mark.parametrize(
    ("layout", "columns", "group_size", "size"),
    [
        (Layout.INT8, 256, 256, 32),
        (Layout.INT5, 256, 256, 16),
        (Layout.INT4, 256, 256, 64),
        (Layout.INT6, 128, 128, 32),
    ],
)
def test_sub_groups_that_no_kernel_has_are_refused(
    native: CpuKernelSet, layout: Layout, columns: int, group_size: int, size: int
) -> None:
    plain = random_quantized(np.random.default_rng(7), layout, 16, columns, group_size)
    weight = replace(plain, sub_scale=np.ones((16, columns // size), np.int8), sub_group_size=size)
    with pytest.raises(BindError, match="sub-groups"):
        times(native, weight, np.ones((1, columns), np.float32), quantize=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sub_scale": None}, "lack their factors"),
        ({"sub_offset": None}, "lack their factors"),
        ({"sub_scale": np.ones((16, 7), np.int8)}, "wrong size or type"),
        ({"sub_offset": np.ones((16, 8), np.int16)}, "wrong size or type"),
    ],
)
def test_sub_groups_without_their_factors_are_refused(
    native: CpuKernelSet, change: dict[str, np.ndarray | None], message: str
) -> None:
    weight = replace(random_sub_groups(np.random.default_rng(7), Layout.INT4, 16, 256, 32), **change)
    with pytest.raises(BindError, match=message):
        times(native, weight, np.ones((1, 256), np.float32), quantize=True)


def test_threads_that_come_late_or_never_change_nothing(native: CpuKernelSet) -> None:
    """With more threads than cores, some come after a run has ended; the work is still done exactly once."""
    rng = np.random.default_rng(10)
    weight = random_weight(rng, Layout.INT4, 640, 1024)
    x = rng.standard_normal((3, 1024)).astype(np.float32)
    graph = Graph()
    source, out = graph.given(x), graph.slot(640)
    graph.add(Linear(whole(source), graph.weight(weight), whole(out)))
    program, step = graph.program(out), plain_step(3)
    results = []
    for num_threads, runs in ((1, 1), (8, 200)):
        executable = bind(native, graph, program, execution_of(quantize=True, num_threads=num_threads))
        results += [logits_of(executable, step) for _ in range(runs)]
        executable.close()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def times(native: CpuKernelSet, weight: CanonicalWeight, x: np.ndarray, quantize: bool) -> np.ndarray:
    def build(graph: Graph) -> Slot:
        source, out = graph.given(x), graph.slot(weight.out_features)
        graph.add(Linear(whole(source), graph.weight(weight), whole(out)))
        return out

    return run_once(native, build, plain_step(len(x)), execution_of(MIN_TALL_ROWS + 3, quantize=quantize))


@pytest.mark.parametrize("scale_type", [np.float16, np.float32])
@pytest.mark.parametrize("layout", [Layout.INT8, Layout.INT4, Layout.INT5, Layout.INT6])
def test_scale_types(native: CpuKernelSet, reference: KernelSet, layout: Layout, scale_type: type) -> None:
    weight = random_quantized(np.random.default_rng(1), layout, 40, 128, 32, "free", scale_type)
    compare(native, reference, weight, 3, quantize=True)


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("extreme", [-128, 127])
@pytest.mark.parametrize("rows", [4, 40, 64, MIN_TALL_ROWS])
def test_extreme_values_do_not_saturate(
    native: CpuKernelSet, reference: KernelSet, extreme: int, quantize: bool, rows: int
) -> None:
    data = np.full((16, 256), extreme, np.int8)
    weight = CanonicalWeight(Layout.INT8, 16, 256, data, np.ones((16, 1), np.float32), None, 256)
    compare(native, reference, weight, rows, quantize)
    for layout, code, columns in ((Layout.INT4, 0xFF, 128), (Layout.INT5, 31, 256), (Layout.INT6, 63, 256)):
        codes = np.full((16, columns), code, np.uint8)
        weight = CanonicalWeight(layout, 16, 256, codes, np.ones((16, 8), np.float16), None, 32)
        for x in (1.0, -1.0):  # every input is the largest of its group
            compare(native, reference, weight, rows, quantize, constant=x)


@pytest.mark.parametrize("layout", GROUP_UNITS)
@pytest.mark.parametrize(("columns", "group_size"), [(96, 96), (96, 8), (512, 512), (48, 48)])
def test_groups_that_planes_cannot_hold_are_refused(
    native: CpuKernelSet, layout: Layout, columns: int, group_size: int
) -> None:
    weight = random_quantized(np.random.default_rng(7), layout, 16, columns, group_size)

    def build(graph: Graph) -> Slot:
        source, out = graph.slot(columns), graph.slot(16)
        graph.add(Linear(whole(source), graph.weight(weight), whole(out)))
        return out

    with pytest.raises(BindError, match="group_size of int5"):
        run_once(native, build, plain_step(1), execution_of())


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_activations_and_accumulation(
    native: CpuKernelSet, reference: KernelSet, activation: str, accumulate: bool
) -> None:
    weight = random_weight(np.random.default_rng(2), Layout.F32, 40, 300)
    compare(native, reference, weight, 9, quantize=False, activation=activation, accumulate=accumulate)


def test_accumulation_without_activation(native: CpuKernelSet, reference: KernelSet) -> None:
    weight = random_weight(np.random.default_rng(2), Layout.BF16, 72, 700)
    compare(native, reference, weight, 20, quantize=False, accumulate=True)


def test_spans_of_shared_slots(native: CpuKernelSet, reference: KernelSet) -> None:
    """Three Linears of different forms read one span and write columns of one slot."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6, 128)).astype(np.float32)
    weights = [random_weight(rng, layout, 24, 64) for layout in (Layout.INT8, Layout.INT8, Layout.INT4)]

    def build(graph: Graph) -> Slot:
        source, out = graph.given(x), graph.slot(72)
        for i, weight in enumerate(weights):
            graph.add(Linear(Span(source, 64, 64), graph.weight(weight), Span(out, 24 * i, 24)))
        return out

    bounds = execution_of(quantize=True)
    assert_close(
        run_once(native, build, plain_step(6), bounds), run_once(reference, build, plain_step(6), bounds), EXACT
    )


def test_a_row_that_is_not_finite_stays_alone(native: CpuKernelSet) -> None:
    rng = np.random.default_rng(4)
    weight = random_weight(rng, Layout.INT8, 32, 64)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    spoiled = x.copy()
    spoiled[1, 5] = np.nan

    def run(values: np.ndarray) -> np.ndarray:
        def build(graph: Graph) -> Slot:
            source, out = graph.given(values), graph.slot(32)
            graph.add(Linear(whole(source), graph.weight(weight), whole(out)))
            return out

        return run_once(native, build, plain_step(4), execution_of(quantize=True))

    clean, other = run(x), run(spoiled)
    assert np.isnan(other[1]).all()
    np.testing.assert_array_equal(np.delete(other, 1, 0), np.delete(clean, 1, 0))


def test_tied_table_is_gathered_from_the_packed_form(native: CpuKernelSet, reference: KernelSet) -> None:
    from appliance.program.operators import Embed

    rng = np.random.default_rng(5)
    tables = [random_weight(rng, layout, 50, 64, 32) for layout in Layout]
    tables += [
        random_sub_groups(rng, layout, 50, 512, size, offset)
        for layout, size in SUB_GROUPS
        for offset in ("symmetric", "free")
    ]
    for table in tables:

        def build(graph: Graph, table: CanonicalWeight = table) -> Slot:
            name = graph.weight(table)
            rows, out = graph.slot(table.in_features), graph.slot(50)
            position = graph.weight(dense(rng.standard_normal((1026, table.in_features)) * 0))
            graph.add(Embed(name, rows, 2.0, position, 2), Linear(whole(rows), name, whole(out)))
            return out

        expected, actual = (run_once(s, build, plain_step(9), execution_of()) for s in (reference, native))
        assert_close(actual, expected, BF16_INPUTS if table.layout is Layout.BF16 else EXACT)
