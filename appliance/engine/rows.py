"""The runner's persistent state: one row a sequence, in arrays that a step indexes with the rows it runs."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from appliance.catalog.sampling import COLUMNS
from appliance.engine.messages import SamplingParams
from appliance.engine.prompt_embeds import PromptEmbeds
from appliance.engine.step import NewRow
from appliance.kernels.interface import LEAST_SCREENED_TEMPERATURE
from appliance.kernels.sampling import COLUMN_TYPES, NO_LOGPROBS, NO_MASK, NO_TOKEN

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class ForbiddenIds:
    """Token ids that one row must not generate: always, before it has `until` tokens, or after certain tokens."""

    num_prompt: int
    always: list[int] = field(default_factory=list)
    until: int = 0
    early: list[int] = field(default_factory=list)
    phrases: list[tuple[list[int], int]] = field(default_factory=list)  # (tokens before, id)

    def now(self, tokens: Int32, num_tokens: int) -> list[int]:
        """Returns the ids forbidden next. `tokens` is the row's line of the token table; phrases match only generated
        tokens."""
        ids = list(self.always)
        if num_tokens < self.until:
            ids += self.early
        for before, token in self.phrases:
            start = num_tokens - len(before)
            if start >= self.num_prompt and tokens[start:num_tokens].tolist() == before:
                ids.append(token)
        return ids


class Rows:
    """Arrays by row. Memory of token_ids int32 [rows, max_len] and of block_tables int32 [groups, rows, max_blocks] is
    used lazily."""

    def __init__(
        self,
        num_rows: int,
        max_len: int,
        block_size: int,
        vocab_size: int,
        most_largest: int = 0,
        num_groups: int = 1,
        num_draft_masks: int = 0,
    ) -> None:
        """`most_largest`: at most so many largest logits can be computed without the others; 0: always all.
        `num_groups`: the groups of caches, each with block tables of its own. `num_draft_masks`: of one step, masks
        that come after drafts."""
        self.vocab_size = vocab_size
        self._most_largest = most_largest
        self.version = 0  # changes with anything but the tokens, so that a gathered batch can be reused
        self.token_ids = np.zeros((num_rows, max_len), np.int32)
        self.block_tables = np.zeros((num_groups, num_rows, -(-max_len // block_size)), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int32)
        self.num_prompt = np.zeros(num_rows, np.int32)
        self.num_blocks = [0] * num_rows
        self.parameters = {
            each.name: np.full(num_rows, each.neutral, COLUMN_TYPES[each.dtype]) for each in COLUMNS
        }  # of sampling, by name
        self.seed = np.zeros(num_rows, np.uint64)
        self.num_logprobs = np.full(num_rows, NO_LOGPROBS, np.int32)
        self.num_largest = np.zeros(num_rows, np.int32)  # how many largest logits decide the row's token; 0: all
        self.is_penalised = np.zeros(num_rows, np.bool_)
        self.mask_row = np.full(num_rows, NO_MASK, np.int32)
        self.mask_bits = np.zeros((0, -(-vocab_size // 32)), np.uint32)  # grows to all lines with the first mask
        self.draft_masks: dict[int, int] = {}  # the line after the first draft of a row, in this step; others follow it
        self._num_masks = num_rows + num_draft_masks  # a line for each row, then those after drafts
        self.biases: dict[int, tuple[list[int], list[float]]] = {}
        self.forbidden: dict[int, ForbiddenIds] = {}
        self.prompt_logprobs: dict[int, int] = {}
        self.second_segment = np.full(num_rows, max_len, np.int32)  # where tokens of type 1 begin
        self.num_with_types = 0  # rows that have such tokens
        self.embeds: dict[int, PromptEmbeds] = {}  # of the first tokens of rows, which are NO_TOKEN
        self.adapter_slots = np.full(num_rows, -1, np.int32)
        self.adapter_scales = np.ones(num_rows, np.float32)

    def put(self, new: NewRow) -> None:
        row, sampling, count = new.row, new.sampling, len(new.token_ids)
        self.version += 1
        self.token_ids[row, :count] = new.token_ids
        self.num_tokens[row] = count
        self.num_prompt[row] = new.num_prompt_tokens
        self.num_blocks[row] = 0
        for name, column in self.parameters.items():
            column[row] = getattr(sampling, name)
        self.seed[row] = new.seed
        self.num_logprobs[row] = self._count(sampling.logprobs)
        self.num_largest[row] = _num_largest(new, min(self._most_largest, self.vocab_size - 1))
        self.is_penalised[row] = any(_penalties(sampling))
        if sampling.logit_bias:
            self.biases[row] = (list(sampling.logit_bias), list(sampling.logit_bias.values()))
        if sampling.bad_words or sampling.min_tokens:
            self.forbidden[row] = self._forbidden(new)
        if new.prompt_logprobs is not None:
            self.prompt_logprobs[row] = self._count(new.prompt_logprobs)
        if new.second_segment is not None:
            self.second_segment[row] = new.second_segment
            self.num_with_types += 1
        if new.embeds is not None:
            self.embeds[row] = new.embeds
            self.token_ids[row, : len(new.embeds)] = NO_TOKEN
        self.adapter_slots[row], self.adapter_scales[row] = new.adapter_slot, new.adapter_scale
        self._put_mask(row, sampling)

    def drop(self, row: int) -> None:
        if self.second_segment[row] < self.token_ids.shape[1]:
            self.second_segment[row] = self.token_ids.shape[1]
            self.num_with_types -= 1
        self.adapter_slots[row] = -1
        self.embeds.pop(row, None)
        self.biases.pop(row, None)
        self.forbidden.pop(row, None)
        self.prompt_logprobs.pop(row, None)

    def append(self, row: int, tokens: list[int]) -> None:
        """Appends the row's next tokens. Raises IndexError if its line has no room for them."""
        start = int(self.num_tokens[row])
        if start + len(tokens) > self.token_ids.shape[1]:
            raise IndexError(f"a row of {self.token_ids.shape[1]} tokens is full")
        self.token_ids[row, start : start + len(tokens)] = tokens
        self.num_tokens[row] = start + len(tokens)

    def put_draft(self, row: int, draft: list[int]) -> None:
        """Writes a draft behind the row's tokens, of which it is none yet."""
        start = int(self.num_tokens[row])
        self.token_ids[row, start : start + len(draft)] = draft

    def add_blocks(self, row: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Appends the blocks to the row's table of each group, as many to each."""
        start = self.num_blocks[row]
        self.num_blocks[row] = end = start + len(blocks[0])
        self.block_tables[:, row, start:end] = blocks

    def _count(self, wanted: int | None) -> int:
        if wanted is None:
            return NO_LOGPROBS
        return self.vocab_size if wanted < 0 else min(wanted, self.vocab_size)

    def _forbidden(self, new: NewRow) -> ForbiddenIds:
        sampling = new.sampling
        return ForbiddenIds(
            num_prompt=new.num_prompt_tokens,
            always=[words[0] for words in sampling.bad_words if len(words) == 1],
            until=new.num_prompt_tokens + sampling.min_tokens,
            early=sorted({*new.eos_token_ids, *sampling.stop_token_ids}),
            phrases=[(list(words[:-1]), words[-1]) for words in sampling.bad_words if len(words) > 1],
        )

    def _put_mask(self, row: int, sampling: SamplingParams) -> None:
        self.mask_row[row] = NO_MASK
        if sampling.allowed_token_ids is None:
            return
        self.open_mask(row)
        allowed = np.asarray(sampling.allowed_token_ids, np.int64)
        self.mask_bits[row] = 0
        np.bitwise_or.at(self.mask_bits[row], allowed // 32, np.uint32(1) << (allowed % 32).astype(np.uint32))

    def open_mask(self, row: int) -> None:
        """Makes the row's line of `mask_bits` decide which tokens may come next."""
        self.version += 1
        self.num_largest[row] = 0
        if not len(self.mask_bits):
            self.mask_bits = np.zeros((self._num_masks, self.mask_bits.shape[1]), np.uint32)
        self.mask_row[row] = row


def _num_largest(new: NewRow, most: int) -> int:
    """Returns how many of its largest logits decide the row's token, besides past tokens with logits as large: one if
    greedy, top_k if at most `most`. Returns 0, for all, if it needs more, reports log-probabilities, or changes logits
    in other ways than lowering those of past tokens."""
    sampling = new.sampling
    raises = min(_penalties(sampling)) < 0
    has_list = (
        sampling.logit_bias or sampling.bad_words or sampling.min_tokens or sampling.allowed_token_ids is not None
    )
    told = sampling.logprobs is not None or new.prompt_logprobs is not None
    steered = new.grammar is not None or sampling.logits_processors
    if most < 1 or raises or has_list or told or steered:
        return 0
    if sampling.temperature == 0:
        return 1
    is_few = 0 < sampling.top_k <= most
    return sampling.top_k if is_few and sampling.temperature >= LEAST_SCREENED_TEMPERATURE else 0


def _penalties(sampling: SamplingParams) -> tuple[float, float, float]:
    """Returns the penalties, shifted so that 0 is off and a positive one lowers logits."""
    return sampling.repetition_penalty - 1, sampling.presence_penalty, sampling.frequency_penalty
