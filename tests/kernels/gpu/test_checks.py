"""A device reads past the end of a table without a word: each number of a step that is an index is looked at first."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from appliance.kernels.errors import StepError
from appliance.kernels.gpu.checks import StepBounds
from appliance.kernels.interface import StatePieces, StepAdapters, StepInputs
from appliance.program.caches import KvShape
from appliance.program.operators import StepProgram
from appliance.program.slots import Extent, Slot
from appliance.program.states import StateShape
from tests.kernels.harness import batch_step, execution_of, int32

VOCAB, BLOCK = 50, 4
LIMITS = execution_of(16, seqs=4, model_len=32, block_size=BLOCK, num_blocks=9, num_states=3).limits


def bounds(*, has_states: bool = False) -> StepBounds:
    states = (StateShape((2,)),) if has_states else ()
    program = StepProgram((), (), Slot(0, Extent.SAMPLED, VOCAB), (KvShape(1, 8, 8),), states)
    return StepBounds(program, LIMITS, VOCAB, 2, has_adapters=False)


def step(**changes: Any) -> StepInputs:
    """Two sequences: three tokens behind two, and one behind five."""
    plain = batch_step([[1, 2, 3], [4]], [2, 5], [[0, 1], [2, 8]], BLOCK)
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": int32([1, 2, 3, VOCAB])}, "vocabulary"),
        ({"token_ids": int32([1, 2, 3, -1])}, "vocabulary"),
        ({"positions": int32([2, 3, 4, 32])}, "max_model_len"),
        ({"token_types": int32([0, 0, 2, 0])}, "type"),
        ({"sampled_rows": int32([4])}, "sampled row"),
        ({"query_start": int32([0, 3, 5])}, "cover"),
        ({"query_start": int32([0, 5, 4])}, "bad length"),
        ({"seq_lens": int32([5, 33])}, "bad length"),
        ({"seq_lens": int32([2, 6])}, "bad length"),
        ({"slot_mapping": int32([[2, 3, 4, 36]])}, "slot"),
        ({"slot_mapping": np.zeros((0, 4), np.int32)}, "no block tables"),
        ({"block_tables": int32([[[0, 1], [2, 9]]])}, "no such block"),
        ({"block_tables": int32([[[0, -1], [2, 8]]])}, "no such block"),
        ({"block_tables": int32([[[0], [2]]])}, "shorter"),
        ({"adapters": StepAdapters(int32([0, -1]), np.ones(2, np.float32))}, "no places"),
        ({"states": StatePieces(int32([0, 1, 2]), int32([0, 3, 4]), int32([-1, -1]), int32([0, 1]))}, "no states"),
        ({"given": np.zeros((4, 8), np.float32)}, "given"),
    ],
)
def test_what_is_out_of_bounds_is_refused(changes: dict[str, Any], message: str) -> None:
    bounds().check(step())
    with pytest.raises(StepError, match=message):
        bounds().check(step(**changes))


def test_a_table_may_say_anything_behind_its_sequence() -> None:
    bounds().check(step(block_tables=int32([[[0, 1, 99], [2, 8, -7]]])))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (None, "no pieces"),
        (([0, 1, 3], [0, 3, 4], [-1, -1], [0, 1]), "all pieces"),
        (([0, 1, 2], [0, 2, 4], [-1, -1], [0, 1]), "not its tokens"),
        (([0, 2, 3], [0, 5, 3, 4], [-1, -1, -1], [0, 0, 1]), "ends before"),
        (([0, 1, 2], [0, 3, 4], [-1, 3], [0, 1]), "not there"),
        (([0, 1, 2], [0, 3, 4], [-1, -1], [0, -1]), "not there"),
        (([0, 1, 2], [0, 3, 4], [-1, -1], [0, 0]), "two sequences"),
        (([0, 1, 2], [0, 3, 4], [-1, 0], [0, 1]), "reads a state"),
    ],
)
def test_pieces_that_meet_are_refused(pieces: tuple[list[int], ...] | None, message: str) -> None:
    good = StatePieces(int32([0, 1, 2]), int32([0, 3, 4]), int32([-1, 1]), int32([0, 1]))
    bounds(has_states=True).check(step(states=good))
    with pytest.raises(StepError, match=message):
        bounds(has_states=True).check(step(states=pieces and StatePieces(*map(int32, pieces))))
