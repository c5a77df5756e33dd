"""Advances the inputs of a step by one token in place, while the same rows keep decoding."""

import numpy as np

from appliance.engine.rows import Int32, Rows
from appliance.engine.step import StepPlan
from appliance.kernels.interface import StepInputs

SPARE_BLOCKS = 8  # extra columns of the gathered block tables, so that they last for some steps


def is_decoding(plan: StepPlan) -> bool:
    """Returns whether each chunk is a decode of one token, without forced tokens or drafts, on its row's states."""
    return plan.num_tokens == len(plan.chunks) and all(
        chunk.is_decode and chunk.sample and chunk.states is None for chunk in plan.chunks
    )


class MovingInputs:
    """The inputs of a step that `is_decoding`, advanced while such steps of the same rows (`row_ids` [R]) follow."""

    def __init__(self, rows: Rows, block_size: int, plan: StepPlan, inputs: StepInputs, row_ids: Int32) -> None:
        self._inputs = inputs
        self._rows = rows
        self._block_size = block_size
        self._row_ids = row_ids
        self._is_penalised = rows.is_penalised[row_ids]
        self._chunks = plan.chunks
        self._version = rows.version
        num_groups, num_rows, width = rows.block_tables.shape
        lines = np.arange(num_groups)[:, None]
        # Where the tables of each group and row begin, in all tables: one index is found faster than three.
        self._sources = (lines * num_rows + row_ids) * width
        self._targets = (lines * len(row_ids) + np.arange(len(row_ids))) * inputs.block_tables.shape[2]
        self._all_tables, self._tables = rows.block_tables.reshape(-1), inputs.block_tables.reshape(-1)
        self._is_ahead = False  # the inputs are those of the step after `_chunks`
        self._is_fed = False  # and their tokens are those of the step before

    def go_on(self, plan: StepPlan) -> bool:
        """Advances the inputs to those of `plan` if needed. Returns False if `plan` is not the next step of the same
        rows; the inputs are invalid then."""
        if not self._is_next(plan) or not (self._is_ahead or self.move()):
            return False
        self._chunks = plan.chunks
        self._is_ahead = False
        if self._is_fed:
            self._take_tokens()
        return True

    def keep(self, plan: StepPlan) -> Int32 | None:
        """Returns the places of the plan's rows in the step that was begun, if it is the next step of some of them.
        The inputs are invalid then."""
        if not self._is_ahead or self._rows.version != self._version or plan.num_tokens != len(plan.chunks):
            return None
        before = {chunk.row: (place, chunk.start) for place, chunk in enumerate(self._chunks)}
        found = [(before.get(chunk.row, (0, -1)), chunk) for chunk in plan.chunks]
        if not all(start >= 0 and chunk.start == start + 1 and chunk.sample for (_, start), chunk in found):
            return None
        return np.array([place for (place, _), _ in found], np.int32)

    def move(self, *, is_fed: bool = False) -> bool:
        """Advances the inputs by one token. Returns False, and changes nothing, if the block tables have no room.
        is_fed: the rows do not have these tokens yet; `go_on` takes them."""
        inputs, rows, block_size = self._inputs, self._rows, self._block_size
        if int(inputs.positions.max()) + 1 >= inputs.block_tables.shape[2] * block_size:
            return False
        inputs.positions += 1
        inputs.seq_lens += 1
        self._is_fed = is_fed
        if not is_fed:
            self._take_tokens()
        indices, offsets = np.divmod(inputs.positions, np.int32(block_size))
        blocks = self._all_tables.take(self._sources + indices)
        self._tables[self._targets + indices] = blocks
        np.multiply(blocks, np.int32(block_size), out=inputs.slot_mapping)
        inputs.slot_mapping += offsets
        if inputs.past is not None:
            np.multiply(rows.num_tokens[self._row_ids], self._is_penalised, out=inputs.past.count)
        inputs.follows = True
        self._is_ahead = True
        return True

    def _take_tokens(self) -> None:
        inputs = self._inputs
        inputs.token_ids[:] = self._rows.token_ids[self._row_ids, inputs.positions]
        self._is_fed = False

    def _is_next(self, plan: StepPlan) -> bool:
        """Returns whether `plan` is the next step of the same rows. Rows are unchanged while their version is."""
        chunks, last = plan.chunks, self._chunks
        if not len(chunks) == len(last) == plan.num_tokens or self._rows.version != self._version:
            return False
        return all(
            now.row == before.row and now.start == before.start + 1 and now.sample
            for now, before in zip(chunks, last, strict=True)
        )
