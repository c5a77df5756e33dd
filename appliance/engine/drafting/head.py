"""The drafters `mtp`, `eagle` and `eagle3`: a head that reads the states of the model for the tokens that it has run.

The head runs only when drafts are wanted. Until then the last states of each row wait in a ring; from there it reads
on, and where it is further behind than the ring reaches, it begins anew with the oldest state that is there: it then
sees the tokens from that place on, as it does behind a cached prefix, whose states nobody has. Rotary positions tell
distances, so a row may begin anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.blocks import RowBlocks
from appliance.engine.drafting.head_rows import HeadRows
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.drafting.waiting import WaitingStates
from appliance.engine.rows import Int32
from appliance.engine.step import Drafted, DraftWish, NewRow
from appliance.kernels.interface import Executable, Keeping, StepInputs


@dataclass(frozen=True, slots=True)
class HeadShape:
    """width: of a state of the model. own_width: of one that the head makes; it stands behind the model's in what the
    head is given if `is_apart`, else in its place. num_kept: states of a row that wait."""

    method: str
    width: int
    own_width: int
    is_apart: bool
    num_kept: int


class _Piece(NamedTuple):
    """Positions of one row that run: the state of each, and the token after it."""

    row: int
    start: int
    tokens: Int32
    states: np.ndarray
    is_last: bool  # the row samples


class HeadDrafter:
    """Drafts with a head. config: the sizes for which it was bound; vocabulary: the tokens that it can say."""

    reads_states = True

    def __init__(
        self, executable: Executable, config: SchedulerConfig, vocabulary: VocabularyMap, shape: HeadShape
    ) -> None:
        assert isinstance(executable, Keeping), "a head keeps the states that it makes"
        self._executable = executable
        self._kept = executable.kept
        self._config, self._shape = config, shape
        num_rows, self._max_len = config.max_num_seqs, config.max_model_len
        self._waiting = WaitingStates(num_rows, shape.num_kept, shape.width)
        self._rows = HeadRows(config, vocabulary, self._waiting)
        self._base, self._read = [0] * num_rows, [0] * num_rows  # where the head began, and to where it has read
        self._blocks = RowBlocks(config, self._rows.rows)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the states that wait."""
        return self._waiting.memory_bytes

    def put(self, new: NewRow) -> None:
        if self._rows.put(new):
            self._base[new.row] = self._read[new.row] = 0
            self._blocks.put(new.row)

    def drop(self, row: int) -> None:
        if self._blocks.drop(row):
            self._rows.rows.drop(row)

    def observe(self, row: int, start: int, states: np.ndarray) -> None:
        if row in self._blocks:
            self._waiting.observe(row, start, states)

    def say(self, row: int, tokens: Sequence[int]) -> None:
        if row in self._blocks and not self._rows.say(row, tokens):
            self.drop(row)

    def draft(self, wish: DraftWish) -> Drafted:
        known = {row: self._rows.count(row) for row in wish.rows if row in self._blocks}
        pieces, num_behind = self._first_pieces(wish, known)
        num_passes = 0
        try:
            while pieces:
                num_passes += 1
                states = self._pass(pieces)
                pieces = [] if num_passes >= wish.num_tokens else self._next_pieces(states)
        finally:
            drafts = self._rows.take_drafts(known, self._shape.method)
            for row, start in known.items():
                self._read[row] = min(self._read[row], start - 1)  # what is beyond was not read of the model's states
        return Drafted(
            drafts=drafts,
            read={row: start - max(0, start - 1 - self._read[row]) for row, start in known.items()},
            num_passes=num_passes,
            num_behind=num_behind,
        )

    def close(self) -> None:
        self._executable.close()

    def _first_pieces(self, wish: DraftWish, known: dict[int, int]) -> tuple[list[_Piece], int]:
        """Returns what each row has not read, as far as may run in one pass, and how much of it is behind."""
        pieces, num_behind = [], 0
        left = self._config.max_num_batched_tokens
        for row, num_tokens in known.items():
            end = num_tokens - 1  # the state of the last token is not known yet
            if not self._waiting.reach(row, end):
                continue
            first = self._waiting.first(row)
            if not max(first, self._base[row]) <= self._read[row] < end:
                self._base[row] = self._read[row] = first
            start = self._read[row]
            length = min(end - start, left)
            if length > wish.num_tokens + 1:
                length = min(length, wish.most_behind - num_behind)
                num_behind += max(0, length)
            if length > 0 and self._blocks.hold(row, start + length + wish.num_tokens - self._base[row]):
                left -= length
                tokens = self._rows.tokens[row, start + 1 : start + length + 1]
                states = self._waiting.read(row, start, start + length)
                pieces.append(_Piece(row, start, tokens, states, start + length == end))
        return pieces, num_behind

    def _next_pieces(self, states: dict[int, np.ndarray]) -> list[_Piece]:
        """Returns the last position of each row that got a token, with the state that the head made before it."""
        pieces = []
        for row, state in states.items():
            last = self._rows.count(row) - 1
            if last - self._base[row] + 1 < self._max_len:
                pieces.append(_Piece(row, last - 1, self._rows.tokens[row, last : last + 1], state[None], True))
        return pieces

    def _pass(self, pieces: list[_Piece]) -> dict[int, np.ndarray]:
        """Runs the head once, and appends a token to each row that samples. Returns the states that were made for the
        rows that got one."""
        inputs, rows = self._inputs(pieces)
        logits = self._executable.run(inputs)
        for piece in pieces:
            self._read[piece.row] = piece.start + len(piece.tokens)
        if not len(rows):
            return {}
        made = self._kept().copy()
        found = self._rows.sample(self._executable, logits, inputs, rows)
        return {row: made[at] for row, at in found.items()}

    def _inputs(self, pieces: list[_Piece]) -> tuple[StepInputs, Int32]:
        """Returns a step of the pieces, and the rows that sample."""
        lengths = np.array([len(piece.tokens) for piece in pieces], np.int32)
        starts = np.array([piece.start - self._base[piece.row] for piece in pieces], np.int32)
        of = np.array([piece.row for piece in pieces], np.int32)
        query_start = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
        positions = np.arange(query_start[-1], dtype=np.int32) + np.repeat(starts - query_start[:-1], lengths)
        size, tables = np.int32(self._config.block_size), self._rows.rows.block_tables
        blocks, offsets = np.divmod(positions, size)
        is_last = np.array([piece.is_last for piece in pieces])
        width = int((starts + lengths).max() - 1) // int(size) + 1
        inputs = StepInputs(
            token_ids=np.concatenate([piece.tokens for piece in pieces]).astype(np.int32),
            positions=positions,
            slot_mapping=np.ascontiguousarray(tables[:, np.repeat(of, lengths), blocks] * size + offsets),
            query_start=query_start,
            seq_lens=starts + lengths,
            block_tables=np.ascontiguousarray(tables[:, of, :width]),
            sampled_rows=(query_start[1:] - np.int32(1))[is_last],
            given=self._given(pieces),
        )
        return inputs, of[is_last]

    def _given(self, pieces: list[_Piece]) -> np.ndarray:
        """Returns the states, f32 [T, W]. The head's own ones have columns of their own, where the others are zero."""
        shape = self._shape
        states = [piece.states for piece in pieces]
        if not shape.is_apart:
            return np.concatenate(states)
        given = np.zeros((sum(map(len, states)), shape.width + shape.own_width), np.float32)
        at = 0
        for each in states:
            is_own = each.shape[1] == shape.own_width
            start = shape.width if is_own else 0
            given[at : at + len(each), start : start + each.shape[1]] = each
            at += len(each)
        return given
