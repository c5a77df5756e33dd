"""Sampling batches to begin a test with."""

import numpy as np

from appliance.catalog.sampling import COLUMNS
from appliance.kernels.sampling import COLUMN_TYPES, NO_LOGPROBS, NO_MASK, NO_TOKEN, SamplingBatch


def empty_batch(num_rows: int, vocab_size: int) -> SamplingBatch:
    """Greedy rows with every filter off."""
    integers = np.zeros(num_rows, np.int32)
    return SamplingBatch(
        **{each.name: np.full(num_rows, each.neutral, COLUMN_TYPES[each.dtype]) for each in COLUMNS},
        seed=np.zeros(num_rows, np.uint64),
        position=np.zeros(num_rows, np.uint64),
        token_table=np.zeros((max(num_rows, 1), 1), np.int32),
        token_row=integers.copy(),
        num_prompt_tokens=integers.copy(),
        num_tokens=integers.copy(),
        bias_start=np.zeros(num_rows + 1, np.int32),
        bias_ids=np.zeros(0, np.int32),
        bias_values=np.zeros(0, np.float32),
        forbidden_start=np.zeros(num_rows + 1, np.int32),
        forbidden_ids=np.zeros(0, np.int32),
        mask_row=np.full(num_rows, NO_MASK, np.int32),
        mask_bits=np.zeros((0, (vocab_size + 31) // 32), np.uint32),
        given_token_ids=np.full(num_rows, NO_TOKEN, np.int32),
        num_logprobs=np.full(num_rows, NO_LOGPROBS, np.int32),
    )
