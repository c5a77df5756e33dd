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
        self._sample = library.functions.appl_sample
        self._call = abi.Sampling()
        self._reference = ctypes.byref(self._call)
        self._arrays: dict[str, np.ndarray] = {}  # that the call points to: asking numpy for an address is slow

    def sample(self, logits: np.ndarray, batch: SamplingBatch) -> SampledBatch:
        """Raises StepError where an id or a range of the batch is out of bounds."""
        num_rows, call, arrays = batch.num_rows, self._call, self._arrays
        result = _allocate(num_rows, int(batch.num_logprobs.max(initial=NO_LOGPROBS)))
        call.num_rows = num_rows
        call.vocab_size = logits.shape[1]
        call.logits_stride = row_stride(logits)
        call.token_table_stride = row_stride(batch.token_table)
        call.mask_stride = row_stride(batch.mask_bits)
        call.raw_logprobs = batch.logprobs_mode.startswith("raw")
        call.normalize = batch.logprobs_mode.endswith("logprobs")
        call.logits = logits.ctypes.data
        call.token_ids = result.token_ids.ctypes.data
        for name in abi.SAMPLING_INPUTS:
            array = getattr(batch, name)
            if array is not arrays.get(name):
                arrays[name] = array
                setattr(call, name, array.ctypes.data)
        _point_to_logprobs(call, result)
        if self._sample(self._pool, self._reference) != 0:
            raise StepError(self._library.last_error())
        return result


def _point_to_logprobs(call: abi.Sampling, result: SampledBatch) -> None:
    if result.logprobs is None or result.logprob_ids is None or result.ranks is None:
        call.logprobs = call.logprob_ids = call.ranks = None
        return
    call.logprobs_stride = result.logprobs.shape[1]
    call.logprobs = result.logprobs.ctypes.data
    call.logprob_ids = result.logprob_ids.ctypes.data
    call.ranks = result.ranks.ctypes.data


def _allocate(num_rows: int, widest: int) -> SampledBatch:
    result = SampledBatch(np.full(num_rows, NO_TOKEN, np.int32))
    if widest != NO_LOGPROBS:
        result.logprob_ids = np.full((num_rows, widest + 1), NO_TOKEN, np.int32)
        result.logprobs = np.full((num_rows, widest + 1), -np.inf, np.float32)
        result.ranks = np.zeros(num_rows, np.int32)
    return result
