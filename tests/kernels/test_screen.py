"""Screened logits: the largest of each row has the bits that it has without a screen, and little else is computed."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.catalog.formats import SIX_BIT_SCREEN_ROWS as MOST_ROWS
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import StepError
from appliance.kernels.interface import PastTokens
from appliance.kernels.layout import Layout
from tests.kernels.harness import (
    dense,
    logits_of,
    plain_step,
    random_quantized,
)
from tests.kernels.heads import DENSE, HIDDEN, VOCABULARY, check, head_of, random_head, random_input, values_of

pytestmark = pytest.mark.many_cases


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("rows", [1, 2, 7, 13, 40])
def test_the_largest_is_exact_and_most_are_not_computed(native: CpuKernelSet, layout: Layout, rows: int) -> None:
    differs = check(head_of(native, random_input(rows), random_head(layout)))
    assert differs.mean() > 0.5


@pytest.mark.parametrize(("vocabulary", "hidden"), [(1, 8), (16, 3), (17, 1), (511, 97), (512, 256), (2000, 1031)])
def test_any_size(native: CpuKernelSet, vocabulary: int, hidden: int) -> None:
    for layout in DENSE:
        check(head_of(native, random_input(5, hidden), random_head(layout, vocabulary, hidden)))


def test_a_norm_before_the_head_and_one_thread(native: CpuKernelSet) -> None:
    for rows in (1, 2, 30):
        assert check(head_of(native, random_input(rows), random_head(), norm=True)).any()
        assert check(head_of(native, random_input(rows), random_head(), threads=1)).any()


def test_outliers_of_the_input_cost_time_alone(native: CpuKernelSet) -> None:
    x = random_input(12)
    x[:, 5] *= 300
    x[::2, 131] *= -1000
    check(head_of(native, x, random_head()))


def test_rows_that_differ_by_less_than_their_rounding(native: CpuKernelSet) -> None:
    """Only bits that the copy does not have decide which logit is the largest."""
    rng = np.random.default_rng(2)
    one = rng.standard_normal(HIDDEN)
    weights = one + rng.standard_normal((VOCABULARY, HIDDEN)) * 1e-4
    check(head_of(native, random_input(9), dense(weights, Layout.F32)))


def test_the_first_of_equal_ones_is_found(native: CpuKernelSet) -> None:
    weights = np.random.default_rng(3).standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    weights[[7, 1540]] = weights[700] * 2
    weights[700] *= 2
    head = head_of(native, weights[700:701] + random_input(1) * 0.01, dense(weights))
    check(head)
    assert head.logits(1).argmax() == 7


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-42, 0.0])
def test_inputs_that_have_no_bounds_are_computed_whole(native: CpuKernelSet, value: float) -> None:
    """Two rows of forty: the others stay screened."""
    x = random_input(40)
    x[1], x[2, 3] = value, value
    head = head_of(native, x, random_head(Layout.F32))
    exact, screened = head.logits(), head.logits(1)
    assert np.array_equal(np.isnan(screened).any(1), np.isnan(exact).any(1))
    assert np.array_equal(screened[1], exact[1], equal_nan=True)
    assert (screened[3:] != exact[3:]).any()
    usable = ~np.isnan(exact).any(1)
    assert np.array_equal(screened[usable].argmax(1), exact[usable].argmax(1))
    assert np.array_equal(screened[usable].max(1), exact[usable].max(1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_weights_that_have_no_bounds_are_always_computed(native: CpuKernelSet, value: float) -> None:
    weight = random_head(Layout.F32)
    weight.data.reshape(VOCABULARY, HIDDEN)[[3, 900]] = value
    head = head_of(native, random_input(6), weight)
    exact, screened = head.logits(), head.logits(1)
    assert np.array_equal(screened[:, [3, 900]], exact[:, [3, 900]], equal_nan=True)
    assert np.array_equal(np.nanargmax(screened, 1), np.nanargmax(exact, 1))
    assert np.array_equal(np.nanmax(screened, 1), np.nanmax(exact, 1))


def test_weights_that_are_all_but_nothing(native: CpuKernelSet) -> None:
    weight = random_head(Layout.F32)
    weight.data.reshape(VOCABULARY, HIDDEN)[[3, 900]] = 1e-42
    assert check(head_of(native, random_input(6), weight)).any()


def test_weights_whose_squares_are_nothing(native: CpuKernelSet) -> None:
    weights = np.random.default_rng(4).standard_normal((30_000, 128)) * 1e-25
    head = head_of(native, random_input(12, 128) * np.float32(1e3), dense(weights, Layout.F32))
    for count in (1, 9):
        check(head, count)


@pytest.mark.parametrize("layout", DENSE)
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_the_first_so_many_are_exact(native: CpuKernelSet, layout: Layout, rows: int) -> None:
    head = head_of(native, random_input(rows, 128), random_head(layout, 30_000, 128))
    for count in (2, 3, 20):
        assert check(head, count).mean() > 0.5


def test_equal_ones_at_the_end_of_the_first_so_many_are_all_exact(native: CpuKernelSet) -> None:
    weights = random_head(Layout.F32, 30_000, 128).data.reshape(30_000, 128).copy()
    x = random_input(1, 128)
    fourth = np.argsort(-(x @ weights.T)[0])[3]
    weights[[11, 17_011, 29_999]] = weights[fourth]
    head = head_of(native, x, dense(weights))
    assert check(head, 4).any()
    exact = head.logits()[0]
    assert np.array_equal(head.logits(4)[0, [11, 17_011, 29_999]], exact[[11, 17_011, 29_999]])


def test_each_row_gets_as_many_as_it_asks_for(native: CpuKernelSet) -> None:
    head = head_of(native, random_input(9, 128), random_head(rows=30_000, hidden=128))
    counts = [1, 5, 0, 64, 1, 2, 1, 7, 1]
    exact, screened = head.logits(), head.logits(counts)
    for row, count in enumerate(counts):
        first = np.argsort(-exact[row], kind="stable")[: count or None]
        assert np.array_equal(screened[row, first], exact[row, first])
        assert (screened[row] != exact[row]).any() == (count > 0)


def test_more_than_there_are_is_all(native: CpuKernelSet) -> None:
    head = head_of(native, random_input(5), random_head())
    for count in (VOCABULARY, 2**31 - 1):
        assert np.array_equal(head.logits(count), head.logits())


def past_of(tokens: list[list[int]]) -> PastTokens:
    """Rows of a table in another order than the rows of logits."""
    count = np.array([len(row) for row in tokens], np.int32)
    table = np.full((len(tokens) + 1, max(count) + 3), VOCABULARY - 1, np.int32)
    row = np.arange(len(tokens), 0, -1, dtype=np.int32)
    for at, ids in zip(row, tokens, strict=True):
        table[at, : len(ids)] = ids
    return PastTokens(table, row, count)


def test_past_tokens_do_not_count(native: CpuKernelSet) -> None:
    """Every second one of a row's first forty tokens is past, some of them twice; logits as large as the fifth of the
    others are exact, past or not."""
    head = head_of(native, random_input(7, 128), random_head(rows=30_000, hidden=128))
    exact, every = head.logits(), np.arange(7)[:, None]
    first = np.argsort(-exact, 1)[:, :40]
    past = past_of([[*row[::2], *row[:6:2]] if at != 3 else [] for at, row in enumerate(first.tolist())])
    step = replace(plain_step(7), num_largest=np.full(7, 5, np.int32), past=past)
    screened = logits_of(head.executable, step)
    wanted = np.where(np.arange(7) == 3, 5, 10)
    least = exact[every, first[every, wanted[:, None] - 1]]
    is_wanted = exact >= least
    assert np.array_equal(screened[is_wanted], exact[is_wanted])
    assert (screened < least)[~is_wanted].all()
    assert (screened != exact).mean() > 0.5


@pytest.mark.parametrize(
    "change",
    [{"row": [0, 1, 2, 9]}, {"row": [0, 1, 2, -1]}, {"count": [0, 0, 0, 6]}, {"count": [0, 0, 0, -1]},
     {"count": [0, 0, 0]}, {"row": [[0, 1, 2, 3]]}, {"table": [[0] * 5]}, {"table": [0] * 5}],
)  # fmt: skip
def test_past_tokens_out_of_their_table_are_refused(native: CpuKernelSet, change: dict[str, list[int]]) -> None:
    head = head_of(native, random_input(4), random_head())
    past = PastTokens(np.zeros((4, 5), np.int32), np.arange(4, dtype=np.int32), np.full(4, 5, np.int32))
    step = replace(plain_step(4), num_largest=np.ones(4, np.int32), past=past)
    head.executable.run(step)
    wrong = replace(past, **{name: np.array(values, np.int32) for name, values in change.items()})
    with pytest.raises(StepError):
        head.executable.run(replace(step, past=wrong))


@pytest.mark.parametrize(
    "asked", [np.full(5, -1, np.int32), np.ones(4, np.int32), np.ones(5, np.int64), np.ones((5, 1), np.int32)]
)
def test_what_asks_for_no_number_of_logits_is_refused(native: CpuKernelSet, asked: np.ndarray) -> None:
    head = head_of(native, random_input(5), random_head())
    with pytest.raises(StepError):
        head.executable.run(replace(plain_step(5), num_largest=asked))


def test_steps_with_and_without_follow_each_other(native: CpuKernelSet) -> None:
    head = head_of(native, random_input(20), random_head(), norm=True)
    exact = head.logits()
    screened = head.logits(1)
    assert np.array_equal(head.logits(), exact)
    assert np.array_equal(head.logits(1), screened)


def test_a_screen_that_gains_nothing_pauses(native: CpuKernelSet) -> None:
    """Row 0 has nothing but equal logits, all of which may be the largest; row 1 is screened where no pause is left."""
    x = random_input(2)
    x[0] = 0
    head = head_of(native, x, random_head())
    exact = head.logits()

    def is_screened(row: int) -> bool:
        sampled = np.array([row], np.int32)
        step = replace(plain_step(2), sampled_rows=sampled, num_largest=np.ones(1, np.int32))
        return not np.array_equal(logits_of(head.executable, step)[0], exact[row])

    assert is_screened(1)
    pauses = [0, 1, 3, 7, 15, 31, 63, 63]
    for failures in range(1, 9):
        for pause in pauses[: failures - 1]:
            assert not any(is_screened(0) for _ in range(1 + pause))
        assert not is_screened(0)
        last = pauses[failures - 1]
        assert [is_screened(1) for _ in range(last + 2)] == [False] * last + [True, True]


@pytest.mark.parametrize(("layout", "pauses"), [(Layout.BF16, False), (Layout.INT8, True)])
def test_a_tenth_of_the_panels_is_too_much_for_a_copy_in_six_bits(
    native: CpuKernelSet, layout: Layout, pauses: bool
) -> None:
    """Ten of 97 have a row that is as large as the largest: these are computed, and the steps count as failures."""
    weight = random_head(layout, hidden=256)
    rows = weight.data.reshape(VOCABULARY, 256)
    same = np.arange(10) * 160
    rows[same] = rows[0]
    if weight.scale is not None:
        weight.scale.reshape(VOCABULARY, -1)[same] = weight.scale.reshape(VOCABULARY, -1)[0]
    head = head_of(native, values_of(weight)[:1], weight)
    exact = head.logits()
    screened = [not np.array_equal(head.logits(1), exact) for _ in range(8)]
    assert screened == ([True, True, False, True, False, False, False, True] if pauses else [True] * 8)
    assert head.logits(1).argmax() == exact.argmax() == 0


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("offset", ["none", "free"])
@pytest.mark.parametrize(
    ("hidden", "group_size"), [(224, 32), (240, 16), (640, 128), (1280, 256), (256, 256), (64, 64)]
)
def test_heads_of_8_bits(native: CpuKernelSet, hidden: int, group_size: int, offset: str, quantize: bool) -> None:
    """The inputs are near some rows of the head, as in a real model."""
    weight = random_quantized(np.random.default_rng(1), Layout.INT8, VOCABULARY, hidden, group_size, offset)
    values = values_of(weight)
    for rows in (1, 3, MOST_ROWS):
        x = values[700 : 700 + rows] + np.float32(0.1 / hidden**0.5) * random_input(rows, hidden)
        assert check(head_of(native, x, weight, quantize=quantize)).mean() > 0.5


def test_the_first_so_many_of_a_head_of_8_bits(native: CpuKernelSet) -> None:
    head = head_of(native, random_input(MOST_ROWS, 128), random_head(Layout.INT8, 30_000, 128))
    for count in (2, 20):
        assert check(head, count).mean() > 0.5
    exact, screened = head.logits(), head.logits([1, 0, 7, 3])
    assert np.array_equal(screened[1], exact[1])
    assert np.array_equal(screened.argmax(1), exact.argmax(1))


def test_a_head_of_8_bits_computes_all_of_many_rows(native: CpuKernelSet) -> None:
    head = head_of(native, random_input(MOST_ROWS + 1), random_head(Layout.INT8))
    assert np.array_equal(head.logits(1), head.logits())


def test_outliers_before_a_head_of_8_bits_cost_time_alone(native: CpuKernelSet) -> None:
    x = random_input(3)
    x[:, 5] *= 300
    x[::2, 131] *= -1000
    for quantize in (True, False):
        check(head_of(native, x, random_head(Layout.INT8), quantize=quantize))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e-42, 0.0])
def test_inputs_of_a_head_of_8_bits_that_have_no_bounds(native: CpuKernelSet, value: float) -> None:
    x = random_input(3)
    x[1, 3:40] = value
    head = head_of(native, x, random_head(Layout.INT8))
    exact, screened = head.logits(), head.logits(1)
    assert np.array_equal(screened[1].max(), exact[1].max(), equal_nan=True)
    assert np.array_equal(screened[[0, 2]].argmax(1), exact[[0, 2]].argmax(1))
    assert np.array_equal(screened[[0, 2]].max(1), exact[[0, 2]].max(1))


@pytest.mark.parametrize("scale", [1e-12, 1e-7, 3e-6, 1e4, 6e4, 1e6, 1e12, np.inf, np.nan])
def test_scales_that_16_bits_do_not_hold(native: CpuKernelSet, scale: float) -> None:
    """Two rows have such groups: they are computed, or are as small as their copies say."""
    weight = random_quantized(np.random.default_rng(1), Layout.INT8, VOCABULARY, HIDDEN, 32, scale_type=np.float32)
    assert weight.scale is not None
    weight.scale.reshape(VOCABULARY, -1)[[3, 900], 2:4] = scale
    x = random_input(2)
    head = head_of(native, x, weight)
    exact, screened = head.logits(), head.logits(1)
    assert np.array_equal(np.nanargmax(screened, 1), np.nanargmax(exact, 1))
    assert np.array_equal(np.nanmax(screened, 1), np.nanmax(exact, 1))
    if not np.isfinite(exact[:, [3, 900]]).all():
        assert np.array_equal(screened[:, [3, 900]], exact[:, [3, 900]], equal_nan=True)


def test_the_copy_in_six_bits_is_counted(native: CpuKernelSet) -> None:
    executable = head_of(native, random_input(3), random_head(Layout.INT8)).executable
    size = executable.memory_bytes["logit_screen"]
    assert size == 1552 * (HIDDEN * 6 // 8 + HIDDEN // 32 * 2 + 8)
    work = executable.operator_work()[-1]
    assert work.screened is not None
    assert (work.screened.unit, work.screened.weight_bytes, work.screened_rows) == ("int8", size, MOST_ROWS)


def test_what_has_no_screen_computes_all(native: CpuKernelSet) -> None:
    x = random_input(3)
    rng = np.random.default_rng(1)
    heads = [
        head_of(native, x, random_head(), cap=30.0),
        head_of(native, x, random_head(Layout.INT4)),
        head_of(native, x, random_quantized(rng, Layout.INT8, VOCABULARY, HIDDEN, 8)),
        head_of(native, x, random_quantized(rng, Layout.INT8, VOCABULARY, HIDDEN, HIDDEN)),
    ]
    for head in heads:
        assert "logit_screen" not in head.executable.memory_bytes
        assert head.executable.operator_work()[-1].screened is None
        assert np.array_equal(head.logits(1), head.logits())


def test_the_copy_is_counted(native: CpuKernelSet) -> None:
    executable = head_of(native, random_input(3), random_head()).executable
    size = executable.memory_bytes["logit_screen"]
    assert size == 1552 * (HIDDEN + 12)  # a byte an element; a scale and two norms a row, of whole panels
    work = executable.operator_work()[-1]
    assert work.screened is not None
    assert (work.screened.unit, work.screened.weight_bytes) == ("int8", size)
    assert work.screened.label.endswith(", screened")
    assert work.screened.row_operations == work.row_operations
