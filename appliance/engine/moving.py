"""Steps in which the same rows decode on: the inputs of the step before move on by a token, without being made anew."""

import numpy as np

from appliance.engine.rows import Int32, Rows
from appliance.engine.step import StepPlan
from appliance.kernels.interface import StepInputs

SPARE_BLOCKS = 8  # of a block table's width, so that it lasts for some steps


def is_decoding(plan: StepPlan) -> bool:
    """Whether each chunk is a decode of a token, without forced tokens or drafts beside it."""
    return plan.num_tokens == len(plan.chunks) and all(chunk.is_decode and chunk.sample for chunk in plan.chunks)


class MovingInputs:
    """The inputs of a step that `is_decoding`, whose tokens are of the rows `row_ids` [R], while such steps follow."""

    def __init__(self, rows: Rows, block_size: int, plan: StepPlan, inputs: StepInputs, row_ids: Int32) -> None:
        self._inputs = inputs
        self._rows = rows
        self._block_size = block_size
        self._row_ids = row_ids
        self._is_penalised = rows.is_penalised[row_ids]
        self._chunks = plan.chunks
        self._version = rows.version
        self._lines = np.arange(len(row_ids))
        self._is_ahead = False  # the inputs are those of the step behind `_chunks`

    def go_on(self, plan: StepPlan) -> bool:
        """Whether the inputs are those of `plan`, moved on if need be. False where that is no next step of the same
        rows; the inputs are of no use then."""
        if not self._is_next(plan) or not (self._is_ahead or self.move()):
            return False
        self._chunks = plan.chunks
        self._is_ahead = False
        return True

    def move(self) -> bool:
        """Moves the inputs on by a token; False, and they stay, where the block tables have no room for that."""
        inputs, rows, block_size = self._inputs, self._rows, self._block_size
        if int(inputs.positions.max()) + 1 >= inputs.block_tables.shape[1] * block_size:
            return False
        inputs.positions += 1
        inputs.seq_lens += 1
        inputs.token_ids[:] = rows.token_ids[self._row_ids, inputs.positions]
        indices, offsets = np.divmod(inputs.positions, np.int32(block_size))
        blocks = rows.block_table[self._row_ids, indices]
        inputs.block_tables[self._lines, indices] = blocks
        np.multiply(blocks, np.int32(block_size), out=inputs.slot_mapping)
        inputs.slot_mapping += offsets
        if inputs.past is not None:
            np.multiply(rows.num_tokens[self._row_ids], self._is_penalised, out=inputs.past.count)
        inputs.follows = True
        self._is_ahead = True
        return True

    def _is_next(self, plan: StepPlan) -> bool:
        """Rows keep their sequences, and what these ask for, as long as the version stays."""
        chunks, last = plan.chunks, self._chunks
        if not len(chunks) == len(last) == plan.num_tokens or self._rows.version != self._version:
            return False
        return all(
            now.row == before.row and now.start == before.start + 1 and now.sample
            for now, before in zip(chunks, last, strict=True)
        )
