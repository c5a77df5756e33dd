"""The drafter `draft_model`: a smaller model, which reads what the rows have and draws with their own numbers.

It has a cache of its own, in which each row has blocks while it is followed. A row that it did not draft for is behind,
and is read on when drafts are wanted again. Where a row says something else than was drafted, what the model read is
valid up to there, as a cache is addressed by position.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.model_times import NEAR
from appliance.engine.drafting.blocks import RowBlocks
from appliance.engine.drafting.row_states import RowStates
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.inputs import BatchBuilder, InputBuilder
from appliance.engine.rows import Rows
from appliance.engine.step import Chunk, Drafted, DraftTokens, DraftWish, NewRow, StepPlan
from appliance.kernels.interface import Executable
from appliance.kernels.sampling import NO_TOKEN

METHOD = "draft_model"


class DraftModel:
    """Drafts with an executable of its own. config: the sizes for which that was bound. num_states: slots of recurrent
    states that each row has beside its own; 0 for a model without."""

    reads_states = False

    def __init__(
        self, executable: Executable, config: SchedulerConfig, vocabulary: VocabularyMap, num_states: int = 0
    ) -> None:
        self._executable = executable
        self._vocabulary = vocabulary
        self._config = config
        num_rows, self._max_len = config.max_num_seqs, config.max_model_len
        vocab_size = len(vocabulary.to_target)
        self._rows = Rows(num_rows, self._max_len + 1, config.block_size, vocab_size, 0, len(config.windows))
        self._states = RowStates(config, num_states) if num_states else None
        sizes = config.block_size, config.max_num_batched_tokens, num_rows
        self._inputs = InputBuilder(self._rows, *sizes, has_states=self._states is not None)
        self._batches = BatchBuilder(self._rows, "raw_logprobs")
        self._blocks = RowBlocks(config, self._rows)
        self._read = [0] * num_rows  # tokens of each row that are in the cache

    def put(self, new: NewRow) -> None:
        tokens = self._vocabulary.translate(new.token_ids)
        if tokens is None or len(tokens) > self._max_len:
            return  # it is not followed
        adapted = msgspec.structs.replace(
            new,
            token_ids=tokens,
            sampling=self._vocabulary.sampling(new.sampling),
            eos_token_ids=self._vocabulary.known(new.eos_token_ids),
            prompt_logprobs=None,
            adapter_slot=-1,
        )
        self._rows.put(adapted)
        self._blocks.put(new.row)
        if self._states is not None:
            self._states.put(new.row)
        self._read[new.row] = 0

    def drop(self, row: int) -> None:
        if self._blocks.drop(row):
            self._rows.drop(row)
        if self._states is not None:
            self._states.drop(row)

    def observe(self, row: int, start: int, states: np.ndarray) -> None:
        """Does nothing: a model reads tokens."""

    def say(self, row: int, tokens: Sequence[int]) -> None:
        if row not in self._blocks:
            return
        said = self._vocabulary.translate(tokens)
        start = int(self._rows.num_tokens[row])
        if said is None or start + len(said) > self._max_len:
            self.drop(row)
            return
        drafted = self._rows.token_ids[row, start : start + len(said)]
        agreed = drafted == said
        num_agreed = len(said) if agreed.all() else int(agreed.argmin())
        self._read[row] = min(self._read[row], start + num_agreed)
        self._rows.append(row, said)

    def draft(self, wish: DraftWish) -> Drafted:
        rows = [row for row in wish.rows if self._has_room(row, wish.num_tokens)]
        known = {row: int(self._rows.num_tokens[row]) for row in rows}
        chunks, num_behind = self._first_chunks(rows, wish.most_behind)
        num_passes, most = 0, wish.num_tokens
        if self._states is not None:
            most = min(most, self._states.most_passes)
        try:
            while chunks:
                num_passes += 1
                going = self._pass(chunks)
                chunks = () if num_passes >= most else tuple(map(self._next_chunk, going))
        finally:
            drafts = {
                row: self._rows.token_ids[row, start : self._rows.num_tokens[row]] for row, start in known.items()
            }
            found = {row: self._vocabulary.back(tokens) for row, tokens in drafts.items()}
            for row, start in known.items():
                self._rows.num_tokens[row] = start
        return Drafted(
            drafts={row: DraftTokens(tokens, METHOD) for row, tokens in found.items() if tokens},
            read={row: self._read[row] for row in wish.rows if row in self._blocks},
            num_passes=num_passes,
            num_behind=num_behind,
        )

    def close(self) -> None:
        self._executable.close()

    def _has_room(self, row: int, num_tokens: int) -> bool:
        """Returns whether a row is followed and can be drafted for; takes the blocks that this needs."""
        return row in self._blocks and self._blocks.hold(row, int(self._rows.num_tokens[row]) + num_tokens)

    def _first_chunks(self, rows: list[int], most_behind: int) -> tuple[tuple[Chunk, ...], int]:
        """Returns what each row has not read, as far as may run in one pass, and how much of it is behind."""
        chunks, num_behind = [], 0
        left = self._config.max_num_batched_tokens
        for at, row in enumerate(rows):
            num_tokens = int(self._rows.num_tokens[row])
            start = min(self._read[row], num_tokens - 1)  # the last token runs in any case, for its logits
            if self._states is not None:
                start = self._states.begin(row, start)
            length = min(num_tokens - start, left - NEAR * (len(rows) - at - 1))
            if length > NEAR:
                length = min(length, most_behind - num_behind)
                num_behind += max(0, length)
            if length > 0:
                left -= length
                chunks.append(self._chunk(row, start, length, is_last=start + length == num_tokens))
        return tuple(chunks), num_behind

    def _next_chunk(self, row: int) -> Chunk:
        return self._chunk(row, int(self._rows.num_tokens[row]) - 1, 1, is_last=True)

    def _chunk(self, row: int, start: int, length: int, *, is_last: bool) -> Chunk:
        moves = None if self._states is None else self._states.moves(row, start, start + length)
        return Chunk(row, start, length, start, (), is_last, is_decode=length == 1, states=moves)

    def _pass(self, chunks: tuple[Chunk, ...]) -> list[int]:
        """Runs the model once, and appends a token to each row that samples. Returns the rows that got one."""
        plan = StepPlan(0, (), (), (), chunks, sum(chunk.length for chunk in chunks))
        inputs, wanted = self._inputs.go_on(plan) or self._inputs.build(plan)
        logits = self._executable.run(inputs)
        for chunk in chunks:
            self._read[chunk.row] = chunk.start + chunk.length
        if not len(wanted.rows):
            return []
        sampled = self._executable.sample(logits, self._batches.build(wanted)).token_ids
        able = sampled != NO_TOKEN
        rows = wanted.rows[able]
        self._rows.token_ids[rows, self._rows.num_tokens[rows]] = sampled[able]
        self._rows.num_tokens[rows] += 1
        found: list[int] = rows.tolist()
        return found
