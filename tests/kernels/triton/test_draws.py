"""Whole batches of every kind of parameter, filtered and drawn by kernels: the tokens are the oracle's."""

import numpy as np
import pytest

from appliance.kernels.gpu.triton_draws import DrawMemory
from appliance.kernels.logits import HostLogits
from appliance.kernels.reference.sampler import ReferenceSampler
from tests.kernels.gpu.test_sampler import CPU, sampled, varied


@pytest.mark.parametrize("seed", range(2))
def test_tokens_are_those_of_the_oracle(seed: int) -> None:
    rows = 6
    logits, batch = varied(seed, rows)
    draws = DrawMemory(rows + 3, CPU, chunks=2)
    got = sampled(logits, batch, draws)
    want = ReferenceSampler().sample(HostLogits(logits), batch)
    np.testing.assert_array_equal(got.token_ids, want.token_ids)
    np.testing.assert_array_equal(got.logprob_ids, want.logprob_ids)
