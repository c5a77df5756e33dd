"""The native sampler: one native call for a batch."""

import ctypes

import numpy as np

from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.memory import row_stride
from appliance.kernels.cpu.sampling_abi import SAMPLING_INPUTS, SamplingCall
from appliance.kernels.logits import HostLogits
from appliance.kernels.sampling import NO_LOGPROBS, NO_TOKEN, SampledBatch, SamplingBatch


class NativeSampler:
    def __init__(self, library: Library, pool: ctypes.c_void_p) -> None:
        """Borrows the pool, which must outlive the sampler."""
        self._library = library
        self._pool = pool
        self._sample = library.functions.appl_sample
        self._call = SamplingCall()
        self._reference = ctypes.byref(self._call)
        self._pointed_to: tuple[HostLogits, SamplingBatch] | None = None  # kept alive: the call points to them
        self._token_ids = np.zeros(0, np.int32)
        self._most_logprobs = NO_LOGPROBS

    def sample(self, logits: HostLogits, batch: SamplingBatch) -> SampledBatch:
        """Samples R rows. Raises StepError if an id or a range of the batch is out of bounds."""
        self._point_to(logits, batch)
        result = SampledBatch(self._token_ids, 0)
        if self._most_logprobs != NO_LOGPROBS:
            _allocate_logprobs(result, self._most_logprobs)
            _point_to_logprobs(self._call, result)
        status = self._sample(self._pool, self._reference)
        if status != 0:
            raise self._library.step_error(status)
        result.num_failed = int(np.count_nonzero(self._token_ids == NO_TOKEN))
        return result

    def _point_to(self, logits: HostLogits, batch: SamplingBatch) -> None:
        """Fills the call, unless both revisions are those of the last call: asking numpy for an address is slow."""
        last = self._pointed_to
        if last is not None and logits.revision == last[0].revision and batch.revision == last[1].revision:
            return
        self._pointed_to = None
        call = self._call
        call.num_rows = batch.num_rows
        call.vocab_size = logits.values.shape[1]
        call.logits_stride = row_stride(logits.values)
        call.token_table_stride = row_stride(batch.token_table)
        call.mask_stride = row_stride(batch.mask_bits)
        call.raw_logprobs = batch.logprobs_mode.startswith("raw")
        call.normalize = batch.logprobs_mode.endswith("logprobs")
        call.logits = logits.values.ctypes.data
        for name in SAMPLING_INPUTS:
            setattr(call, name, getattr(batch, name).ctypes.data)
        self._token_ids = np.full(batch.num_rows, NO_TOKEN, np.int32)
        self._most_logprobs = int(batch.num_logprobs.max(initial=NO_LOGPROBS))
        call.token_ids = self._token_ids.ctypes.data
        call.logprobs = call.logprob_ids = call.ranks = None
        call.logprobs_stride = 0  # the native check refuses rows that request logprobs nevertheless
        self._pointed_to = logits, batch


def _allocate_logprobs(result: SampledBatch, most: int) -> None:
    num_rows = len(result.token_ids)
    result.logprob_ids = np.full((num_rows, most + 1), NO_TOKEN, np.int32)
    result.logprobs = np.full((num_rows, most + 1), -np.inf, np.float32)
    result.ranks = np.zeros(num_rows, np.int32)


def _point_to_logprobs(call: SamplingCall, result: SampledBatch) -> None:
    assert result.logprobs is not None
    assert result.logprob_ids is not None
    assert result.ranks is not None
    call.logprobs_stride = result.logprobs.shape[1]
    call.logprobs = result.logprobs.ctypes.data
    call.logprob_ids = result.logprob_ids.ctypes.data
    call.ranks = result.ranks.ctypes.data
