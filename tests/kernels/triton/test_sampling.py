"""Draws against the reference sampler: the same tokens for the same logits and numbers."""

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.triton.sampling import SamplerWorkspace, sample
from appliance.kernels.logits import HostLogits
from appliance.kernels.reference.sampler import ReferenceSampler
from appliance.kernels.sampling import SamplingBatch
from tests.kernels.batches import empty_batch
from tests.kernels.triton.oracle import span_of


def drawn(logits: np.ndarray, batch: SamplingBatch, by_count: bool = True, by_mass: bool = True) -> list[int]:
    rows = len(logits)
    out, space = torch.full((rows,), 99, dtype=torch.int32), SamplerWorkspace.allocate(rows, "cpu", chunks=2)
    with np.errstate(divide="ignore"):
        min_logs = torch.from_numpy(np.log(batch.min_p))
    sample(span_of(torch.from_numpy(logits)), torch.from_numpy(batch.temperature), torch.from_numpy(batch.top_k),
           torch.from_numpy(batch.top_p), min_logs, torch.from_numpy(batch.seed.view(np.int64)),
           torch.from_numpy(batch.position.view(np.int64)), out, space, by_count, by_mass)  # fmt: skip
    return out.tolist()


def expected(logits: np.ndarray, batch: SamplingBatch) -> list[int]:
    return ReferenceSampler().sample(HostLogits(logits), batch).token_ids.tolist()


def random_case(seed: int, rows: int, vocab: int) -> tuple[np.ndarray, SamplingBatch]:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)  # many are equal, and some are minus zero
    logits[:, rng.integers(0, vocab, vocab // 8)] = -np.inf
    batch = empty_batch(rows, vocab)
    batch.temperature[:] = rng.choice([0, 0.5, 1, 2], rows)
    batch.top_k[:] = rng.choice([0, 1, 5, 50], rows)
    batch.top_p[:] = rng.choice([1, 0.9, 0.3, 0.01], rows)
    batch.min_p[:] = rng.choice([0, 0.05, 0.5], rows)
    batch.seed[:] = rng.integers(0, 2**64, rows, dtype=np.uint64)
    batch.position[:] = rng.integers(0, 2**40, rows, dtype=np.uint64)
    return logits, batch


@pytest.mark.parametrize(("seed", "vocab"), [(1, 300), (2, 700)])
def test_the_reference_draws_the_same(seed: int, vocab: int) -> None:
    logits, batch = random_case(seed, 5, vocab)
    want = expected(logits, batch)
    assert len(set(want)) > 2
    assert drawn(logits, batch) == want


def test_searches_that_no_row_needs_are_left_out() -> None:
    logits, batch = random_case(5, 3, 300)
    batch.temperature[:] = 1.5
    batch.top_p[:] = 1
    assert drawn(logits, batch, by_mass=False) == expected(logits, batch)
    batch.top_k[:] = 0
    assert drawn(logits, batch, by_count=False, by_mass=False) == expected(logits, batch)
    batch.top_p[:] = 0.8
    assert drawn(logits, batch, by_count=False) == expected(logits, batch)


def test_rows_without_a_token() -> None:
    logits, batch = random_case(4, 3, 100)
    logits[0, 5] = np.nan
    logits[1] = -np.inf
    assert drawn(logits, batch) == [-1, -1, expected(logits, batch)[2]]
