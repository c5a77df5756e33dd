"""The sizes of a step, counted from its arrays."""

import numpy as np
import pytest

from appliance.kernels.counts import count_step
from appliance.kernels.interface import StepInputs
from appliance.program.work import ChunkReach


def step(query_lens: list[int], seq_lens: list[int], tables: list[list[int]]) -> StepInputs:
    positions = [p for query, end in zip(query_lens, seq_lens, strict=True) for p in range(end - query, end)]
    return StepInputs(
        token_ids=np.zeros(len(positions), np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.zeros((1, len(positions)), np.int32),
        query_start=np.array([0, *np.cumsum(query_lens)], np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_tables=np.array([tables], np.int32),
        sampled_rows=np.arange(2, dtype=np.int32),
    )


def test_counts_of_a_step() -> None:
    counts = count_step(step([4, 1], [6, 30], [[0, 9, 9], [1, 2, 9]]), 16, {None: 0, 3: 0})
    assert (counts.tokens, counts.sampled, counts.few_logits) == (5, 2, False)
    assert counts.keys == {None: 36, 3: 6 + 3}
    assert counts.visits == {None: 3 + 4 + 5 + 6 + 30, 3: 5 * 3}


@pytest.mark.parametrize(
    ("window", "keys"),
    [
        (None, 35 + 40 + 70 - 2 * 16 - 16),  # blocks 0 and 1 of two of them, block 0 of the third
        (30, 30 + 30 + 30 - 16),  # the first two see block 1 whole
        (37, 35 + 37 + 37 - 16),
    ],
)
def test_a_block_that_several_see_counts_once(window: int | None, keys: int) -> None:
    tables = [[0, 1, 2, 7, 7], [0, 1, 3, 7, 7], [0, 4, 5, 6, 8]]
    assert count_step(step([1, 1, 1], [35, 40, 70], tables), 16, {window: 0}).keys == {window: keys}


def test_counts_stay_when_the_arrays_of_the_step_are_used_again() -> None:
    inputs = step([1], [20], [[0, 1]])
    counts = count_step(inputs, 16, {None: 0})
    inputs.seq_lens += 1
    inputs.positions += 1
    assert (counts.keys, counts.visits) == ({None: 20}, {None: 20})
    assert count_step(inputs, 16, {None: 0}).keys == {None: 21}


def test_keys_without_a_cache_are_shared_by_no_two() -> None:
    tables = [[0, 1, 2, 7, 7], [0, 1, 3, 7, 7]]
    assert count_step(step([35, 40], [35, 40], tables), 16, {None: None, 8: None}).keys == {None: 75, 8: 75}


def test_a_chunk_begins_anew_where_a_window_slides() -> None:
    counts = count_step(step([4, 1], [6, 30], [[0, 9, 9], [1, 2, 9]]), 16, {ChunkReach(4): 0})
    assert counts.visits == {ChunkReach(4): 3 + 4 + 1 + 2 + 2}
    assert counts.keys == {ChunkReach(4): 6 + 2}  # of the second sequence the keys at 28 and 29
