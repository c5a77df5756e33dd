"""The arguments and results of a sampler: plain arrays for R rows of logits over a vocabulary of V tokens.

The order of processing is that of vLLM: allowed mask, forbidden ids, logit bias, penalties; then greedy rows take the
largest logit (the lowest id in a tie), other rows divide by temperature and filter by min_p, top_k and top_p.
A row's result depends on that row alone, never on the rest of the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from appliance.kernels.logits import Float32Array, HostLogits
from appliance.kernels.revision import new_revision

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]

NO_LOGPROBS = -1  # in SamplingBatch.num_logprobs
NO_TOKEN = -1  # in SamplingBatch.given_token_ids, and in SampledBatch.token_ids if no token could be chosen
NO_MASK = -1  # in SamplingBatch.mask_row

COLUMN_TYPES: Mapping[str, type[np.generic]] = {"f32": np.float32, "i32": np.int32}  # by SamplingColumn.dtype

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True)
class SamplingBatch:
    """The parameters of R rows. All arrays are C-contiguous; ids are in [0, V). The first fields are those of
    `catalog.sampling.COLUMNS`, which has their bounds and neutral values.

    temperature f32 [R]: 0 is greedy. top_k i32 [R]: 0 keeps all. top_p f32 [R] in (0, 1]. min_p f32 [R] in [0, 1].
    A filter keeps the first tokens in the order (logit descending, id ascending): exactly top_k of them; then the
    shortest prefix whose share of the probability left by top_k reaches top_p. min_p is relative to the most likely
    token.

    repetition_penalty f32 [R] (1 is off) applies to tokens of prompt and output; presence_penalty and frequency_penalty
    f32 [R] (0 is off) apply to the output. The tokens of row r are token_table[token_row[r], :num_tokens[r]], of which
    the first num_prompt_tokens[r] are the prompt. token_table is i32 [rows, max_len], the engine's persistent table; it
    is read only for rows with a penalty. It has NO_TOKEN where a prompt has an embedding: no penalty is about that.

    seed u64 [R] and position u64 [R] give the random number: Philox4x32-10 with key = seed and counter = position. The
    position is any number that differs from draw to draw of one sequence, such as the count of its tokens.

    bias_start i32 [R + 1], bias_ids i32 [B], bias_values f32 [B]: row r adds bias_values[i] to logit bias_ids[i] for i
    in bias_start[r] .. bias_start[r + 1]. forbidden_start i32 [R + 1], forbidden_ids i32 [F]: likewise the ids that are
    forbidden now (bad words, end tokens before min_tokens).
    mask_row i32 [R]: a row of mask_bits, or NO_MASK. mask_bits u32 [M, ceil(V / 32)]: bit id % 32 of word id // 32 is
    set if an id is allowed (the form of xgrammar and llguidance).

    given_token_ids i32 [R]: NO_TOKEN to sample, or the token whose log-probability is wanted (prompt_logprobs).
    num_logprobs i32 [R]: NO_LOGPROBS, or k most likely tokens beside the chosen one (V for the whole vocabulary).

    The same revision means the same arrays; only the numbers in position and num_tokens may differ. A changed copy
    (`dataclasses.replace`) has a revision of its own.
    """

    temperature: Float32Array
    top_p: Float32Array
    min_p: Float32Array
    repetition_penalty: Float32Array
    presence_penalty: Float32Array
    frequency_penalty: Float32Array
    top_k: Int32Array
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.uint64]
    token_table: Int32Array
    token_row: Int32Array
    num_prompt_tokens: Int32Array
    num_tokens: Int32Array
    bias_start: Int32Array
    bias_ids: Int32Array
    bias_values: Float32Array
    forbidden_start: Int32Array
    forbidden_ids: Int32Array
    mask_row: Int32Array
    mask_bits: npt.NDArray[np.uint32]
    given_token_ids: Int32Array
    num_logprobs: Int32Array
    logprobs_mode: LogprobsMode = "raw_logprobs"
    revision: int = field(init=False, default_factory=new_revision, compare=False)

    @property
    def num_rows(self) -> int:
        return int(self.temperature.shape[0])


@dataclass(slots=True)
class SampledBatch:
    """The sampled tokens. token_ids i32 [R], valid until the next call; NO_TOKEN in the `num_failed` rows for which no
    token could be chosen (all are forbidden, or a logit is NaN).

    The logprobs arrays are None if no row requested them. K is the largest num_logprobs of the batch. logprob_ids i32
    [R, 1 + K] has the chosen token first, then the most likely in order, padded with NO_TOKEN; logprobs f32 [R, 1 + K]
    has the value of each by logprobs_mode; ranks i32 [R] has the chosen token's rank, 1 for the most likely.
    is_nan bool [R] says where a logit is NaN, if some token could not be chosen and the logits may be gone by now.
    """

    token_ids: Int32Array
    num_failed: int
    logprob_ids: Int32Array | None = None
    logprobs: Float32Array | None = None
    ranks: Int32Array | None = None
    is_nan: npt.NDArray[np.bool_] | None = None


class Sampler(Protocol):
    def sample(self, logits: HostLogits, batch: SamplingBatch) -> SampledBatch:
        """Samples R rows from logits [R, V] without changing them."""
