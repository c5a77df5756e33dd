"""What the sizes of a step make of the work of its operators."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.program.work import OperatorWork, StepCounts


def test_counts_of_a_step() -> None:
    positions = np.array([2, 3, 4, 5, 29])
    counts = StepCounts(5, 2, np.array([4, 1]), np.array([6, 30]), positions, np.array([[0, 9, 9], [1, 2, 9]]), 16)
    assert counts.keys(None) == 36
    assert counts.visits(None) == 3 + 4 + 5 + 6 + 30
    assert counts.keys(3) == 6 + 3
    assert counts.visits(3) == 5 * 3
    assert counts.bytes_of(OperatorWork("a", key_bytes=10, weight_bytes=7, row_bytes=2)) == 7 + 2 * 5 + 360
    assert counts.operations_of(OperatorWork("a", row_operations=3, visit_operations=2, window=3)) == 15 + 30


@pytest.mark.parametrize(
    ("window", "keys"),
    [
        (None, 35 + 40 + 70 - 2 * 16 - 16),  # blocks 0 and 1 of two of them, block 0 of the third
        (30, 30 + 30 + 30 - 16),  # the first two see block 1 whole
        (37, 35 + 37 + 37 - 16),
    ],
)
def test_a_block_that_several_see_counts_once(window: int | None, keys: int) -> None:
    tables = np.array([[0, 1, 2, 7, 7], [0, 1, 3, 7, 7], [0, 4, 5, 6, 8]])
    lengths = np.array([35, 40, 70])
    counts = StepCounts(3, 3, np.ones(3, int), lengths, lengths - 1, tables, 16)
    assert counts.keys(window) == keys


def test_a_changed_step_is_counted_anew() -> None:
    lengths = np.array([20])
    counts = StepCounts(1, 1, np.ones(1, int), lengths, lengths - 1, np.array([[0, 1]]), 16)
    assert counts.keys(None) == 20
    assert replace(counts, seq_lens=lengths + 1).keys(None) == 21
