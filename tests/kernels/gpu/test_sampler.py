"""The sampler on torch against the oracle, over batches of every kind of parameter."""

import dataclasses

import numpy as np
import pytest
import torch

from appliance.kernels.errors import StepError
from appliance.kernels.gpu.checks import check_sampling
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.device_sampler import DeviceSampler
from appliance.kernels.gpu.draws import Draws
from appliance.kernels.gpu.philox import uniforms
from appliance.kernels.logits import HostLogits
from appliance.kernels.reference.sampler import ReferenceSampler, philox_uniform
from appliance.kernels.sampling import NO_TOKEN, SampledBatch, SamplingBatch
from tests.kernels.test_sampling import empty_batch

ROWS, VOCAB = 24, 97
CPU = Device(torch.device("cpu"))


def sampled(logits: np.ndarray, batch: SamplingBatch, draws: Draws | None = None) -> SampledBatch:
    sampler = DeviceSampler(len(logits), CPU, draws, None)
    return sampler.begin(torch.from_numpy(logits), batch).result()


def varied(seed: int, rows: int = ROWS) -> tuple[np.ndarray, SamplingBatch]:
    """Logits with ties, and a batch in which every parameter is off in some rows."""
    random = np.random.default_rng(seed)
    logits = np.round(random.normal(0, 3, (rows, VOCAB)), 1).astype(np.float32)
    batch = empty_batch(rows, VOCAB)

    def sometimes(values: np.ndarray, off: float) -> np.ndarray:
        return np.where(random.random(rows) < 0.5, values, off)

    batch.temperature[:] = sometimes(random.uniform(0.1, 2, rows), 0)
    batch.top_k[:] = sometimes(random.integers(1, 20, rows), 0)
    batch.top_p[:] = sometimes(random.uniform(0.1, 1, rows), 1)
    batch.min_p[:] = sometimes(random.uniform(0, 0.3, rows), 0)
    batch.repetition_penalty[:] = sometimes(random.uniform(0.5, 2, rows), 1)
    batch.presence_penalty[:] = sometimes(random.uniform(-1, 1, rows), 0)
    batch.frequency_penalty[:] = sometimes(random.uniform(-1, 1, rows), 0)
    batch.seed[:], batch.position[:] = random.integers(0, 1 << 62, rows), random.integers(0, 1 << 40, rows)
    batch.token_table = random.integers(0, VOCAB, (rows, 12)).astype(np.int32)
    batch.token_row[:], batch.num_tokens[:], batch.num_prompt_tokens[:] = np.arange(rows), 12, 5
    batch.bias_start = np.arange(rows + 1, dtype=np.int32)
    batch.bias_ids, batch.bias_values = (
        random.integers(0, VOCAB, rows).astype(np.int32), random.normal(0, 4, rows).astype(np.float32)
    )  # fmt: skip
    batch.forbidden_start = np.arange(rows + 1, dtype=np.int32)
    batch.forbidden_ids = random.integers(0, VOCAB, rows).astype(np.int32)
    batch.mask_bits = random.integers(0, 1 << 32, (3, -(-VOCAB // 32)), np.uint64).astype(np.uint32)
    batch.mask_row[:] = random.integers(-1, 3, rows)
    batch.given_token_ids[:] = sometimes(random.integers(0, VOCAB, rows), NO_TOKEN)
    batch.num_logprobs[:] = random.integers(-1, 6, rows)
    return logits, batch


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
@pytest.mark.parametrize("seed", range(6))
def test_tokens_and_logprobs_are_those_of_the_oracle(seed: int, mode: str) -> None:
    logits, batch = varied(seed)
    batch = dataclasses.replace(batch, logprobs_mode=mode)
    got, want = sampled(logits, batch), ReferenceSampler().sample(HostLogits(logits), batch)
    np.testing.assert_array_equal(got.token_ids, want.token_ids)
    assert got.num_failed == want.num_failed
    assert want.logprob_ids is not None
    assert got.logprobs is not None
    assert want.logprobs is not None
    assert len(set(want.token_ids.tolist())) > ROWS // 3
    np.testing.assert_array_equal(got.logprob_ids, want.logprob_ids)
    np.testing.assert_array_equal(got.ranks, want.ranks)
    np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-5, atol=1e-5)


def test_what_is_no_token_has_no_penalty() -> None:
    logits, batch = varied(7)
    batch.token_table[:, :3] = NO_TOKEN
    check_sampling(batch, VOCAB)
    got, want = sampled(logits, batch), ReferenceSampler().sample(HostLogits(logits), batch)
    np.testing.assert_array_equal(got.token_ids, want.token_ids)


def test_rows_that_cannot_say_anything_have_no_token() -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[0, 39], logits[1] = np.nan, -np.inf
    batch = empty_batch(3, 40)
    batch.temperature[2], batch.mask_row[2] = 1, 0
    batch.mask_bits = np.zeros((1, 2), np.uint32)
    result = sampled(logits, batch)
    assert (result.token_ids.tolist(), result.num_failed) == ([NO_TOKEN] * 3, 3)


def test_numbers_are_those_of_the_oracle() -> None:
    random = np.random.default_rng(5)
    seeds, positions = (random.integers(0, 1 << 64, 50, np.uint64) for _ in range(2))
    want = [philox_uniform(int(seed), int(position)) for seed, position in zip(seeds, positions, strict=True)]
    assert uniforms(seeds, positions).tolist() == want


@pytest.mark.parametrize(
    "change",
    [
        {"bias_start": [0, 1], "bias_ids": [40], "bias_values": [1.0]},
        {"forbidden_start": [0, 1], "forbidden_ids": [-1]},
        {"forbidden_start": [1, 0]},
        {"given_token_ids": [40]},
        {"mask_row": [0], "mask_bits": np.zeros((0, 2))},
        {"num_logprobs": [41]},
        {"repetition_penalty": [2.0], "num_tokens": [1], "token_table": [[99]]},
        {"repetition_penalty": [2.0], "num_tokens": [5]},
    ],
)
def test_ids_out_of_bounds_are_refused(change: dict[str, list[object]]) -> None:
    batch = empty_batch(1, 40)
    changed = {name: np.array(value, getattr(batch, name).dtype) for name, value in change.items()}
    check_sampling(batch, 40)
    with pytest.raises(StepError, match="sampling"):
        check_sampling(dataclasses.replace(batch, **changed), 40)
