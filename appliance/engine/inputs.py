"""Turns a StepPlan into arrays: StepInputs for the model, a SamplingBatch for the sampler. No Python work per token."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from appliance.catalog.pooling import PoolingKind
from appliance.catalog.sampling import COLUMNS
from appliance.engine.given_embeds import step_embeds
from appliance.engine.moving import SPARE_BLOCKS, MovingInputs, is_decoding
from appliance.engine.rows import Int32, Rows
from appliance.engine.states import into_spare, state_pieces
from appliance.engine.step import Chunk, StepPlan
from appliance.kernels.interface import FewLogits, PastTokens, StepAdapters, StepInputs
from appliance.kernels.revision import new_revision
from appliance.kernels.sampling import NO_LOGPROBS, NO_MASK, NO_TOKEN, LogprobsMode, SamplingBatch

_NO_IDS = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0, np.float32)


@dataclass(slots=True)
class LogitRows:
    """The R rows of logits that a step computes: the engine's row, and the token whose log-probability is requested
    there (NO_TOKEN where a token is sampled). They are the same for all inputs of one revision."""

    tokens: Int32  # [R], as indices into the step's tokens
    rows: Int32  # [R]
    given: Int32  # [R]
    num_sampled: int  # the first num_sampled rows are sampled
    revision: int = 0  # the revision of the inputs
    ahead: Int32 | None = None  # [R], the drafts between the row's known tokens and it; None: nowhere any
    first: list[int] | None = None  # with `ahead`: of each chunk that samples, its first row of logits

    def lengths(self, num_tokens: Int32) -> Int32:
        """Returns how many tokens come before each sample, of the token counts by engine's row."""
        lengths: Int32 = num_tokens[self.rows]
        return lengths if self.ahead is None else lengths + self.ahead


class InputBuilder:
    """Builds StepInputs in reused buffers: they are valid until the next call. While the same rows decode, the same
    inputs (same revision) are advanced in place. `few_logits` None: all logits of every row are computed.
    `pooling`: of a model that pools, whose rows are not those of logits."""

    def __init__(
        self,
        rows: Rows,
        block_size: int,
        max_num_tokens: int,
        max_num_seqs: int,
        few_logits: FewLogits | None = None,
        pooling: PoolingKind | None = None,
        *,
        has_states: bool = False,
    ) -> None:
        self._rows = rows
        self._pooling = pooling
        self._few_logits = few_logits
        self._block_size = block_size
        self._num_rows = max_num_seqs
        self._has_states = has_states
        self._num_groups, _, self._max_blocks = rows.block_tables.shape
        self._slots = np.empty(self._num_groups * max_num_tokens, np.int32)
        self._token_ids = np.empty(max_num_tokens, np.int32)
        self._query_start = np.zeros(max_num_seqs + 1, np.int32)
        self._tables = np.empty(self._num_groups * max_num_seqs * self._max_blocks, np.int32)
        self._last: tuple[StepInputs, LogitRows]
        self._moving: MovingInputs | None = None  # advances `_last` in place

    def go_on(self, plan: StepPlan) -> tuple[StepInputs, LogitRows] | None:
        """Returns the last inputs, advanced, if the same rows keep decoding; None if the step needs new ones."""
        if self._moving is not None and self._moving.go_on(plan):
            return self._last
        return None

    def ahead(self, *, is_fed: bool = False) -> StepInputs | None:
        """Returns the inputs of the next step, if the same rows keep decoding; None if they are not known yet. is_fed:
        the rows do not have its tokens yet, so those of the inputs are not to be read."""
        return self._last[0] if self._moving is not None and self._moving.move(is_fed=is_fed) else None

    def keep(self, plan: StepPlan) -> tuple[StepInputs, LogitRows, Int32] | None:
        """Returns the inputs of the step that was begun, if the plan is that step without some rows; and of the plan's
        rows those of logits, and their places in the step."""
        places = None if self._moving is None else self._moving.keep(plan)
        if places is None:
            return None
        self._moving = None
        inputs, before = self._last
        rows, given = before.rows[places], before.given[places]
        return inputs, LogitRows(before.tokens[places], rows, given, len(rows), new_revision()), places

    def give_up(self) -> None:
        """Makes the next step build new inputs, even if the same rows keep decoding."""
        self._moving = None

    def build(self, plan: StepPlan) -> tuple[StepInputs, LogitRows]:
        """Builds new inputs; those returned before become invalid."""
        self._moving = None
        self._last = inputs, wanted = self._build(plan)
        if is_decoding(plan) and not self._rows.prompt_logprobs:
            self._moving = MovingInputs(self._rows, self._block_size, plan, inputs, wanted.rows)
        return self._last

    def build_trial(self, plan: StepPlan) -> StepInputs:
        """Builds inputs for a step that changes nothing that later ones read: a step of the same chunks may follow."""
        inputs, _ = self.build(plan)
        if inputs.states is not None:
            into_spare(inputs.states, self._num_rows)
        return inputs

    def _build(self, plan: StepPlan) -> tuple[StepInputs, LogitRows]:
        chunks = plan.chunks
        fields = np.array([(c.row, c.start, c.length, c.write_start, c.sample) for c in chunks], np.int32).T
        row_ids, starts, lengths, write_starts, sample = np.ascontiguousarray(fields)
        count, num_tokens = len(chunks), plan.num_tokens
        query_start = self._query_start[: count + 1]
        np.cumsum(lengths, out=query_start[1:])
        if num_tokens == count:
            of, positions = row_ids, starts
        else:
            of = np.repeat(row_ids, lengths)
            positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - query_start[:-1], lengths)
        token_ids = self._token_ids[:num_tokens]
        slots = self._slots[: self._num_groups * num_tokens].reshape(self._num_groups, num_tokens)
        token_ids[:] = self._rows.token_ids[of, positions]
        embeds = step_embeds(chunks, self._rows.embeds, num_tokens) if self._rows.embeds else None
        if embeds is not None:
            token_ids[embeds.row_of >= 0] = 0
        blocks, offsets = np.divmod(positions, np.int32(self._block_size))
        np.multiply(self._rows.block_tables[:, of, blocks], np.int32(self._block_size), out=slots)
        slots += offsets
        if (write_starts > starts).any():
            slots[:, positions < np.repeat(write_starts, lengths)] = -1
        ends = starts + lengths
        wanted = self._logit_rows(chunks, row_ids, sample, query_start)
        types = positions >= self._rows.second_segment[of] if self._rows.num_with_types else None
        num_largest = self._num_largest(wanted.rows)
        inputs = StepInputs(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slots,
            query_start=query_start,
            seq_lens=ends,
            block_tables=self._gather_tables(row_ids, int(ends.max())),
            sampled_rows=wanted.tokens,
            num_largest=num_largest,
            past=None if num_largest is None else self._past(wanted),
            states=state_pieces(chunks, row_ids, starts, query_start) if self._has_states else None,
            token_types=None if types is None else types.astype(np.int32),
            adapters=self._adapters(row_ids),
            embeds=embeds,
        )
        wanted.revision = inputs.revision
        return inputs, wanted

    def _adapters(self, row_ids: Int32) -> StepAdapters | None:
        """Returns the slots of the rows' adapters; None if no row has one, so that the program without places runs."""
        slots = self._rows.adapter_slots[row_ids]
        return StepAdapters(slots, self._rows.adapter_scales[row_ids]) if (slots >= 0).any() else None

    def _num_largest(self, rows: Int32) -> Int32 | None:
        """Returns how many of the largest logits each row [R] needs (0: all); None if too many rows need all."""
        if self._few_logits is None:
            return None
        asked = self._rows.num_largest[rows]
        wants_all = np.count_nonzero(asked == 0)
        return None if wants_all >= self._few_logits.whole_share * len(asked) else asked

    def _past(self, wanted: LogitRows) -> PastTokens | None:
        is_penalised = self._rows.is_penalised[wanted.rows]
        if not is_penalised.any():
            return None
        return PastTokens(self._rows.token_ids, wanted.rows, wanted.lengths(self._rows.num_tokens) * is_penalised)

    def _gather_tables(self, row_ids: Int32, longest: int) -> Int32:
        """Returns the block tables as a contiguous [G, S, blocks of the longest sequence and some spare]."""
        width = min(-(-longest // self._block_size) + SPARE_BLOCKS, self._max_blocks)
        shape = (self._num_groups, len(row_ids), width)
        tables = self._tables[: math.prod(shape)].reshape(shape)
        return np.take(self._rows.block_tables[:, :, :width], row_ids, axis=1, out=tables, mode="clip")

    def _logit_rows(self, chunks: tuple[Chunk, ...], row_ids: Int32, sample: Int32, query_start: Int32) -> LogitRows:
        """Returns the last token of each chunk that samples, and, with prompt_logprobs, all before a prompt token. A
        model that pools may want the first one, or all: then chunks are whole prompts."""
        if self._pooling == "all":
            rows = np.repeat(row_ids, np.diff(query_start))
            count = len(rows)
            return LogitRows(np.arange(count, dtype=np.int32), rows, np.full(count, NO_TOKEN, np.int32), count)
        sampling = np.flatnonzero(sample)
        last, rows = query_start[1:][sampling] - np.int32(1), row_ids[sampling]
        if any(chunk.draft is not None for chunk in chunks):
            wanted = _with_drafts(np.array([chunk.num_drafts for chunk in chunks], np.int32)[sampling], last, rows)
        else:
            tokens = query_start[:-1][sampling] if self._pooling == "cls" else last
            wanted = LogitRows(tokens, rows, np.full(len(tokens), NO_TOKEN, np.int32), len(rows))
        return self._with_prompts(wanted, chunks, query_start) if self._rows.prompt_logprobs else wanted

    def _with_prompts(self, wanted: LogitRows, chunks: tuple[Chunk, ...], query_start: Int32) -> LogitRows:
        """Returns the rows, and after them those before prompt tokens, of which log-probabilities are wanted."""
        parts = [(wanted.tokens, wanted.rows, wanted.given)]
        for at, chunk in enumerate(chunks):
            if chunk.row in self._rows.prompt_logprobs:
                end = min(chunk.start + chunk.length + 1, int(self._rows.num_prompt[chunk.row]))
                asked = self._rows.token_ids[chunk.row, chunk.start + 1 : end]
                first = query_start[at]
                indices = np.arange(first, first + len(asked), dtype=np.int32)
                parts.append((indices, np.full(len(asked), chunk.row, np.int32), asked))
        every, of, asked = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        ahead = wanted.ahead
        if ahead is not None:
            ahead = np.concatenate((ahead, np.zeros(len(every) - len(ahead), np.int32)))
        return LogitRows(every, of, asked, wanted.num_sampled, ahead=ahead, first=wanted.first)


def _with_drafts(num_drafts: Int32, last: Int32, rows: Int32) -> LogitRows:
    """Returns a row for each draft and one after it, of chunks that sample in `rows` and have their last tokens at
    `last`."""
    counts = num_drafts + np.int32(1)
    first = np.cumsum(counts, dtype=np.int32) - counts
    ahead = np.arange(counts.sum(), dtype=np.int32) - np.repeat(first, counts)
    tokens = np.repeat(last - num_drafts, counts) + ahead
    given = np.full(len(tokens), NO_TOKEN, np.int32)
    return LogitRows(tokens, np.repeat(rows, counts), given, len(tokens), ahead=ahead, first=first.tolist())


class BatchBuilder:
    """Gathers the sampling parameters of the rows whose logits a step has."""

    def __init__(self, rows: Rows, mode: LogprobsMode) -> None:
        self._rows = rows
        self._mode = mode
        self._last: SamplingBatch | None = None  # the last batch, if it has only sampled rows and no lists
        self._gathered = (-1, 0)  # the versions that it was gathered for: of the rows, of the inputs

    def build(self, wanted: LogitRows, left_out: Collection[int] = ()) -> SamplingBatch:
        """Returns the batch, valid until the next call. While the same rows decode, only their lengths change. Rows in
        `left_out` get neutral parameters: greedy, no log-probabilities."""
        rows, last = self._rows, self._last
        asked = rows.version, wanted.revision
        if last is None or left_out or asked != self._gathered:
            batch = self._gather(wanted, left_out)
            self._gathered = asked
            is_plain = not (left_out or rows.biases or rows.forbidden or rows.prompt_logprobs)
            self._last = batch if is_plain else None
            return batch
        last.num_tokens[:] = last.position[:] = rows.num_tokens[wanted.rows]
        return last

    def _gather(self, wanted: LogitRows, left_out: Collection[int]) -> SamplingBatch:
        """Gathers a new batch. Prompt positions (with a given token) get neutral parameters: nothing is drawn there."""
        rows, at = self._rows, wanted.rows
        lengths = wanted.lengths(rows.num_tokens)
        bias_start, bias_ids, bias_values = self._biases(wanted, left_out)
        forbidden_start, forbidden_ids = self._forbidden(wanted, left_out)
        batch = SamplingBatch(
            **{name: column[at] for name, column in rows.parameters.items()},
            seed=rows.seed[at],
            position=lengths.astype(np.uint64),
            token_table=rows.token_ids,
            token_row=at,
            num_prompt_tokens=rows.num_prompt[at],
            num_tokens=lengths,
            bias_start=bias_start,
            bias_ids=bias_ids,
            bias_values=bias_values,
            forbidden_start=forbidden_start,
            forbidden_ids=forbidden_ids,
            mask_row=self._mask_rows(wanted),
            mask_bits=rows.mask_bits,
            given_token_ids=wanted.given,
            num_logprobs=rows.num_logprobs[at],
            logprobs_mode=self._mode,
        )
        if rows.prompt_logprobs:
            self._neutralise(batch, np.flatnonzero(wanted.given != NO_TOKEN))
        if left_out:
            own = np.flatnonzero(np.isin(at, list(left_out)))
            self._neutralise(batch, own)
            batch.given_token_ids[own], batch.num_logprobs[own] = NO_TOKEN, NO_LOGPROBS
        return batch

    def _neutralise(self, batch: SamplingBatch, prompt: np.ndarray) -> None:
        for each in COLUMNS:
            getattr(batch, each.name)[prompt] = each.neutral
        batch.mask_row[prompt] = NO_MASK
        batch.num_logprobs[prompt] = [
            self._rows.prompt_logprobs.get(row, NO_LOGPROBS) for row in batch.token_row[prompt].tolist()
        ]

    def _mask_rows(self, wanted: LogitRows) -> Int32:
        """Returns the line of each row's mask; after a draft, a row with a grammar has a mask of its own."""
        lines: Int32 = self._rows.mask_row[wanted.rows]
        if wanted.ahead is not None:
            for row, first in self._rows.draft_masks.items():
                own = np.flatnonzero((wanted.rows == row) & (wanted.ahead > 0))
                lines[own] = first + wanted.ahead[own] - 1
        return lines

    def _biases(self, wanted: LogitRows, left_out: Collection[int]) -> tuple[Int32, Int32, np.ndarray]:
        start = np.zeros(len(wanted.rows) + 1, np.int32)
        if not self._rows.biases:
            return start, _NO_IDS, _NO_VALUES
        ids: list[int] = []
        values: list[float] = []
        for at, (row, given) in enumerate(zip(wanted.rows.tolist(), wanted.given.tolist(), strict=True)):
            if given == NO_TOKEN and row in self._rows.biases and row not in left_out:
                ids += self._rows.biases[row][0]
                values += self._rows.biases[row][1]
            start[at + 1] = len(ids)
        return start, np.array(ids, np.int32), np.array(values, np.float32)

    def _forbidden(self, wanted: LogitRows, left_out: Collection[int]) -> tuple[Int32, Int32]:
        start = np.zeros(len(wanted.rows) + 1, np.int32)
        forbidden = self._rows.forbidden
        if not forbidden:
            return start, _NO_IDS
        ids: list[int] = []
        lengths = wanted.lengths(self._rows.num_tokens)
        for at, (row, given) in enumerate(zip(wanted.rows.tolist(), wanted.given.tolist(), strict=True)):
            if given == NO_TOKEN and row in forbidden and row not in left_out:
                ids += forbidden[row].now(self._rows.token_ids[row], int(lengths[at]))
            start[at + 1] = len(ids)
        return start, np.array(ids, np.int32)
