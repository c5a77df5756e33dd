"""Steps in which the same rows decode on: the inputs of the step before move on by a token, without being made anew."""

import numpy as np

from appliance.engine.rows import Int32, Rows
from appliance.engine.step import Chunk, StepPlan
from appliance.kernels.interface import StepInputs

SPARE_BLOCKS = 8  # of a block table's width, so that it lasts for some steps


def is_decoding(plan: StepPlan) -> bool:
    """Whether each chunk is a token that is stored and sampled behind."""
    is_short = plan.num_tokens == len(plan.chunks)
    return is_short and all(chunk.sample and chunk.write_start == chunk.start for chunk in plan.chunks)


class Decodes:
    """The inputs of a step that `is_decoding`, whose tokens are of the rows `row_ids` [R], while such steps follow."""

    def __init__(self, rows: Rows, block_size: int, plan: StepPlan, inputs: StepInputs, row_ids: Int32) -> None:
        self._inputs = inputs
        self._rows = rows
        self._block_size = block_size
        self._row_ids = row_ids
        self._is_penalised = rows.is_penalised[row_ids]
        self._chunks = plan.chunks
        self._version = rows.version

    def go_on(self, plan: StepPlan) -> bool:
        """Moves the inputs on to `plan`; False, and they stay, where that is no such step of the same rows."""
        if not self._is_next(plan):
            return False
        self._chunks = plan.chunks
        inputs, rows = self._inputs, self._rows
        inputs.positions += 1
        inputs.seq_lens += 1
        inputs.slot_mapping += 1
        inputs.token_ids[:] = rows.token_ids[self._row_ids, inputs.positions]
        for at, chunk in enumerate(plan.chunks):
            if chunk.new_blocks:
                self._enter_block(at, chunk)
        if inputs.past is not None:
            np.multiply(rows.num_tokens[self._row_ids], self._is_penalised, out=inputs.past.count)
        return True

    def _is_next(self, plan: StepPlan) -> bool:
        """Rows keep their sequences, and what these ask for, as long as the version stays."""
        chunks, last = plan.chunks, self._chunks
        if not len(chunks) == len(last) == plan.num_tokens or self._rows.version != self._version:
            return False
        end = self._inputs.block_tables.shape[1] * self._block_size
        return all(
            now.row == before.row and now.start == before.start + 1 and now.start < end and now.sample
            for now, before in zip(chunks, last, strict=True)
        )

    def _enter_block(self, at: int, chunk: Chunk) -> None:
        index, offset = divmod(chunk.start, self._block_size)
        block = self._rows.block_table[chunk.row, index]
        self._inputs.block_tables[at, index] = block
        self._inputs.slot_mapping[at] = block * self._block_size + offset
