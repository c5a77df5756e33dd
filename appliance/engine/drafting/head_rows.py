"""The rows of a head: their tokens by the model's ids and by the head's, and the states of the model that wait."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.engine.drafting.waiting import WaitingStates
from appliance.engine.inputs import BatchBuilder, LogitRows
from appliance.engine.rows import Int32, Rows
from appliance.engine.step import DraftTokens, NewRow
from appliance.kernels.interface import Executable, StepInputs
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import NO_TOKEN


class HeadRows:
    """Keeps rows of up to `config.max_model_len` tokens. vocabulary: the tokens that the head can say."""

    def __init__(self, config: SchedulerConfig, vocabulary: VocabularyMap, waiting: WaitingStates) -> None:
        num_rows, self._max_len = config.max_num_seqs, config.max_model_len
        num_said = len(vocabulary.to_target)
        self.rows = Rows(num_rows, self._max_len + 1, config.block_size, num_said, 0, len(config.windows))
        self.tokens = np.zeros((num_rows, self._max_len + 1), np.int32)  # of the model's vocabulary
        self.waiting = waiting
        self._vocabulary = vocabulary
        self._batches = BatchBuilder(self.rows, "raw_logprobs")

    def put(self, new: NewRow) -> bool:
        """Begins a row. Returns False if it is too long."""
        count, row = len(new.token_ids), new.row
        if count > self._max_len:
            return False
        self.tokens[row, :count] = new.token_ids
        self.rows.put(
            msgspec.structs.replace(
                new,
                token_ids=self._said(new.token_ids),
                sampling=self._vocabulary.sampling(new.sampling),
                eos_token_ids=self._vocabulary.known(new.eos_token_ids),
                prompt_logprobs=None,
                adapter_slot=-1,
            )
        )
        self.waiting.put(row)
        return True

    def say(self, row: int, tokens: Sequence[int]) -> bool:
        """Appends what a row said. Returns False if it is too long then."""
        start = self.count(row)
        if start + len(tokens) > self._max_len:
            return False
        self.tokens[row, start : start + len(tokens)] = tokens
        self.rows.append(row, self._said(tokens))
        return True

    def count(self, row: int) -> int:
        """Returns how many tokens a row has, with those drafted."""
        return int(self.rows.num_tokens[row])

    def has_room(self, row: int, num_tokens: int) -> bool:
        """Returns whether so many tokens of a row can be drafted."""
        return self.count(row) + num_tokens <= self._max_len

    def sample(self, executable: Executable, logits: Logits, inputs: StepInputs, rows: Int32) -> dict[int, int]:
        """Draws the next token of each of the rows, which the logits are of, and appends it. Returns the rows that got
        one that the model has, with their places among the rows."""
        none = np.full(len(rows), NO_TOKEN, np.int32)
        wanted = LogitRows(inputs.sampled_rows, rows, none, len(rows), revision=inputs.revision)
        sampled = executable.sample(logits, self._batches.build(wanted)).token_ids
        found = {}
        for at, (row, token) in enumerate(zip(rows.tolist(), sampled.tolist(), strict=True)):
            if token != NO_TOKEN and self._vocabulary.to_target[token] >= 0:
                self.tokens[row, self.count(row)] = self._vocabulary.to_target[token]
                self.rows.append(row, [token])
                found[row] = at
        return found

    def take_drafts(self, known: Mapping[int, int], method: str) -> dict[int, DraftTokens]:
        """Returns what was drafted for rows, beyond the tokens that were known of each, and forgets it."""
        found = {row: self.tokens[row, start : self.count(row)].tolist() for row, start in known.items()}
        for row, start in known.items():
            self.rows.num_tokens[row] = start
        return {row: DraftTokens(tokens, method) for row, tokens in found.items() if tokens}

    def _said(self, tokens: Sequence[int]) -> list[int]:
        """Returns the head's ids; a token that it cannot say is its first one, where only penalties look."""
        found: list[int] = np.maximum(self._vocabulary.to_draft[np.asarray(tokens, np.int64)], 0).tolist()
        return found
