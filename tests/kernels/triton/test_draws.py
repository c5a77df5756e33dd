"""Whole batches of every kind of parameter, filtered and drawn by kernels: the tokens are the oracle's."""

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.triton.argmax import NO_TOKEN
from appliance.kernels.gpu.triton.launch import recorded
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


def test_greedy_rows_take_the_largest_logit_in_two_kernels() -> None:
    """Ties, minus zero, infinities, and rows without a token; the parameters of draws count for nothing."""
    logits, batch = varied(3, 6)
    logits = np.round(logits)
    logits[0], logits[0, 5], logits[0, 9] = -1, -0.0, 0.0
    logits[1, 4], logits[2] = np.nan, -np.inf
    batch.temperature[:] = 0
    draws = DrawMemory(9, CPU, chunks=2)
    kernels: list[str] = []
    out = torch.zeros(6, dtype=torch.int32)
    kind = draws.load(batch)
    with recorded(lambda kernel, *_: kernels.append(kernel.__name__)):
        draws.run(torch.from_numpy(logits), kind, out)
    assert kernels == ["argmax_part_kernel", "argmax_end_kernel"]
    draws.run(torch.from_numpy(logits), kind, out)
    want = [int(row.argmax()) for row in logits]
    want[1] = want[2] = NO_TOKEN
    assert out.tolist() == want
    assert want[0] == 5
    batch.temperature[3] = 1
    assert not draws.load(batch).is_greedy
