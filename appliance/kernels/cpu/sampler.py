"""The native sampler: one call a batch."""

import ctypes

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.memory import row_stride
from appliance.kernels.errors import StepError
from appliance.kernels.sampling import NO_LOGPROBS, NO_TOKEN, SampledBatch, SamplingBatch


class NativeSampler:
    def __init__(self, library: Library, pool: ctypes.c_void_p) -> None:
        """Borrows the pool, which outlives this."""
        self._library = library
        self._pool = pool

    def sample(self, logits: np.ndarray, batch: SamplingBatch) -> SampledBatch:
        """Raises StepError where an id or a range of the batch is out of bounds."""
        num_rows, vocab_size = batch.num_rows, logits.shape[1]
        result = _allocate(num_rows, int(batch.num_logprobs.max(initial=NO_LOGPROBS)))
        call = abi.Sampling(
            num_rows=num_rows,
            vocab_size=vocab_size,
            logits_stride=row_stride(logits),
            token_table_stride=row_stride(batch.token_table),
            mask_stride=row_stride(batch.mask_bits),
            raw_logprobs=batch.logprobs_mode.startswith("raw"),
            normalize=batch.logprobs_mode.endswith("logprobs"),
            logits=logits.ctypes.data,
            token_ids=result.token_ids.ctypes.data,
        )
        for name in abi.SAMPLING_INPUTS:
            setattr(call, name, getattr(batch, name).ctypes.data)
        if result.logprobs is not None and result.logprob_ids is not None and result.ranks is not None:
            call.logprobs_stride = result.logprobs.shape[1]
            call.logprobs = result.logprobs.ctypes.data
            call.logprob_ids = result.logprob_ids.ctypes.data
            call.ranks = result.ranks.ctypes.data
        if self._library.functions.appl_sample(self._pool, ctypes.byref(call)) != 0:
            raise StepError(self._library.last_error())
        return result


def _allocate(num_rows: int, widest: int) -> SampledBatch:
    result = SampledBatch(np.full(num_rows, NO_TOKEN, np.int32))
    if widest != NO_LOGPROBS:
        result.logprob_ids = np.full((num_rows, widest + 1), NO_TOKEN, np.int32)
        result.logprobs = np.full((num_rows, widest + 1), -np.inf, np.float32)
        result.ranks = np.zeros(num_rows, np.int32)
    return result
