"""The drafters `medusa` and `mlp_speculator`: heads without layers, of which each guesses one further token.

They read the state of the last token that the model has run, and keep no cache. So nothing is ever behind: where that
state is not known, as after tokens that a grammar forced, they draft nothing.
"""

from collections.abc import Sequence

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.head import HeadShape
from appliance.engine.drafting.head_rows import HeadRows
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.drafting.waiting import WaitingStates
from appliance.engine.rows import Int32
from appliance.engine.step import Drafted, DraftWish, NewRow
from appliance.kernels.interface import Executable, Keeping, StepInputs


class StageDrafter:
    """Drafts with an executable for each stage, of up to `config.max_num_batched_tokens` rows in a pass; the last one
    runs again up to `num_tokens` times in all. A shape of no own width: every stage reads the model's state."""

    reads_states = True

    def __init__(
        self,
        stages: Sequence[Executable],
        config: SchedulerConfig,
        vocabulary: VocabularyMap,
        shape: HeadShape,
        num_tokens: int,
    ) -> None:
        self._stages, self._num_tokens, self._shape = stages, num_tokens, shape
        self._most_rows = config.max_num_batched_tokens
        self._waiting = WaitingStates(config.max_num_seqs, shape.num_kept, shape.width)
        self._rows = HeadRows(config, vocabulary, self._waiting)
        self._followed: set[int] = set()

    @property
    def memory_bytes(self) -> int:
        """The bytes of the states that wait."""
        return self._waiting.memory_bytes

    def put(self, new: NewRow) -> None:
        if self._rows.put(new):
            self._followed.add(new.row)

    def drop(self, row: int) -> None:
        if row in self._followed:
            self._followed.remove(row)
            self._rows.rows.drop(row)

    def observe(self, row: int, start: int, states: np.ndarray) -> None:
        if row in self._followed:
            self._waiting.observe(row, start, states)

    def say(self, row: int, tokens: Sequence[int]) -> None:
        if row in self._followed and not self._rows.say(row, tokens):
            self.drop(row)

    def draft(self, wish: DraftWish) -> Drafted:
        known = {row: self._rows.count(row) for row in wish.rows if row in self._followed}
        most = min(wish.num_tokens, self._num_tokens)
        able = [row for row, count in known.items() if self._is_able(row, count, most)][: self._most_rows]
        states = [self._waiting.read(row, known[row] - 2, known[row] - 1)[0] for row in able]
        num_passes = 0
        try:
            while able and num_passes < most:
                able, states = self._pass(num_passes, able, states)
                num_passes += 1
        finally:
            drafts = self._rows.take_drafts(known, self._shape.method)
        return Drafted(drafts=drafts, read=known, num_passes=num_passes)

    def close(self) -> None:
        for stage in self._stages:
            stage.close()

    def _is_able(self, row: int, count: int, most: int) -> bool:
        """Returns whether the state before a row's last token waits, and the row has room for drafts."""
        return self._waiting.reach(row, count - 1) and self._rows.has_room(row, most)

    def _pass(self, number: int, rows: list[int], states: list[np.ndarray]) -> tuple[list[int], list[np.ndarray]]:
        """Runs a stage, and appends a token to each row. Returns the rows that got one, and what the next stage reads
        of each."""
        stage, of = self._stages[min(number, len(self._stages) - 1)], np.array(rows, np.int32)
        inputs = self._inputs(of, self._given(np.stack(states), is_first=number == 0))
        logits = stage.run(inputs)
        made = states
        if self._shape.own_width:
            assert isinstance(stage, Keeping), "a stage keeps the states that it makes"
            made = [*stage.kept().copy()]
        found = self._rows.sample(stage, logits, inputs, of)
        return list(found), [made[at] for at in found.values()]

    def _inputs(self, rows: Int32, given: np.ndarray) -> StepInputs:
        count, tables = len(rows), self._rows.rows.block_tables
        each = np.arange(count + 1, dtype=np.int32)
        return StepInputs(
            token_ids=self._rows.tokens[rows, self._rows.rows.num_tokens[rows] - 1],
            positions=np.zeros(count, np.int32),
            slot_mapping=np.zeros((len(tables), count), np.int32),
            query_start=each,
            seq_lens=np.ones(count, np.int32),
            block_tables=np.ascontiguousarray(tables[:, rows, :1]),
            sampled_rows=each[:-1].copy(),
            given=given,
        )

    def _given(self, states: np.ndarray, *, is_first: bool) -> np.ndarray:
        """Returns the states, f32 [rows, W]. Those of a stage may have columns of their own, where others are zero."""
        shape = self._shape
        if not shape.is_apart:
            return states
        given = np.zeros((len(states), shape.width + shape.own_width), np.float32)
        start = 0 if is_first else shape.width
        given[:, start : start + states.shape[1]] = states
        return given
