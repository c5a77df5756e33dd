"""The native sampler against the oracle; statistics, determinism and hostile input."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.catalog.sampling import COLUMNS, SamplingColumn
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.sampler import NativeSampler
from appliance.kernels.cpu.sampling_abi import SamplingCall
from appliance.kernels.errors import StepError
from appliance.kernels.logits import HostLogits
from appliance.kernels.measure import thread_pool
from appliance.kernels.reference.sampler import ReferenceSampler, philox_uniform
from appliance.kernels.sampling import NO_TOKEN, Sampler, SamplingBatch
from tests.kernels.batches import empty_batch

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@pytest.fixture(scope="module")
def sampler(library: Library) -> Iterator[NativeSampler]:
    with thread_pool(library, 2) as pool:
        yield NativeSampler(library, pool)


def random_ranges(rng: np.random.Generator, rows: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    counts = rng.integers(0, 4, rows)
    start = np.concatenate(([0], counts.cumsum())).astype(np.int32)
    return start, rng.integers(0, vocab, counts.sum()).astype(np.int32)


def random_batch(rng: np.random.Generator, rows: int, vocab: int) -> SamplingBatch:
    batch = empty_batch(rows, vocab)
    batch.temperature[:] = rng.choice([0, 0.5, 1, 2], rows)
    batch.top_k[:] = rng.choice([0, 1, 5, 50], rows)
    batch.top_p[:] = rng.choice([1, 0.9, 0.3, 0.01], rows)
    batch.min_p[:] = rng.choice([0, 0.05, 0.5], rows)
    batch.repetition_penalty[:] = rng.choice([1, 1.3], rows)
    batch.presence_penalty[:] = rng.choice([0, 0.5], rows)
    batch.frequency_penalty[:] = rng.choice([0, 0.5], rows)
    batch.seed[:] = rng.integers(0, 2**63, rows)
    batch.position[:] = rng.integers(0, 100, rows)
    batch.token_table = rng.integers(0, vocab, (20, 40)).astype(np.int32)
    batch.token_row[:] = rng.integers(0, 20, rows)
    batch.num_tokens[:] = rng.integers(0, 40, rows)
    batch.num_prompt_tokens[:] = np.minimum(batch.num_tokens, rng.integers(0, 20, rows))
    batch.bias_start, batch.bias_ids = random_ranges(rng, rows, vocab)
    batch.bias_values = (5 * rng.standard_normal(batch.bias_ids.size)).astype(np.float32)
    batch.forbidden_start, batch.forbidden_ids = random_ranges(rng, rows, vocab)
    batch.mask_bits = rng.integers(0, 2**32, (3, (vocab + 31) // 32), dtype=np.uint32)
    batch.mask_row[:] = rng.choice([-1, -1, 0, 1, 2], rows)
    batch.given_token_ids[:] = np.where(rng.random(rows) < 0.2, rng.integers(0, vocab, rows), NO_TOKEN)
    batch.num_logprobs[:] = rng.choice([-1, 0, 3, vocab], rows)
    return batch


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("vocab", [7, 333, 5000, 20001])
def test_agrees_with_the_oracle(sampler: Sampler, vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 12))
    logits = (rng.standard_normal((rows, vocab)) * rng.choice([0.1, 1, 5])).astype(np.float32)
    if seed % 3 == 0:
        logits = np.round(logits * 2) / 2  # many ties
    batch = random_batch(rng, rows, vocab)
    batch.logprobs_mode = MODES[seed % 4]
    before = logits.copy()
    want, got = ReferenceSampler().sample(HostLogits(logits), batch), sampler.sample(HostLogits(logits), batch)
    np.testing.assert_array_equal(got.token_ids, want.token_ids)
    np.testing.assert_array_equal(logits, before)
    if want.logprobs is None or got.logprobs is None:
        assert got.logprobs is want.logprobs
        return
    np.testing.assert_array_equal(got.logprob_ids, want.logprob_ids)
    np.testing.assert_array_equal(got.ranks, want.ranks)
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-4)


def test_what_is_no_token_has_no_penalty(sampler: Sampler) -> None:
    """A prompt may have embeddings in place of tokens: an answer is that of the same row without them."""
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((8, 300)).astype(np.float32)
    batch = random_batch(rng, 8, 300)
    batch.repetition_penalty[:], batch.frequency_penalty[:] = 1.7, 0.4
    batch.num_tokens[:], batch.num_prompt_tokens[:] = 30, 9
    batch.token_table[:, :9] = NO_TOKEN
    without = dataclasses.replace(
        batch,
        token_table=np.ascontiguousarray(batch.token_table[:, 9:]),
        num_tokens=batch.num_tokens - np.int32(9),
        num_prompt_tokens=batch.num_prompt_tokens - np.int32(9),
    )
    for each in (sampler, ReferenceSampler()):
        found, expected = (each.sample(HostLogits(logits), some) for some in (batch, without))
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_array_equal(found.logprobs, expected.logprobs)


def test_philox_known_answers() -> None:
    """Random123's kat_vectors: philox4x32-10 of zeros, and of ones."""
    assert philox_uniform(0, 0) == ((0x6627E8D5 << 21) | (0xE169C58D >> 11)) * 2.0**-53


def test_frequencies_follow_the_distribution(sampler: Sampler) -> None:
    rows = 20000
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.08, 0.02], np.float32))
    batch = empty_batch(rows, 5)
    batch.temperature[:] = 1
    batch.seed[:] = 7
    batch.position[:] = np.arange(rows)
    drawn = sampler.sample(HostLogits(np.tile(logits, (rows, 1))), batch).token_ids
    shares = np.bincount(drawn, minlength=5) / rows
    expected = np.exp(logits)
    assert (np.abs(shares - expected) < 5 * np.sqrt(expected / rows)).all()
    batch.top_p[:] = 0.6
    kept = np.bincount(sampler.sample(HostLogits(np.tile(logits, (rows, 1))), batch).token_ids, minlength=5) / rows
    np.testing.assert_allclose(kept, [2 / 3, 1 / 3, 0, 0, 0], atol=0.02)


def test_a_row_does_not_depend_on_its_batch(sampler: Sampler) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((16, 3000)).astype(np.float32)
    batch = empty_batch(16, 3000)
    batch.temperature[:] = 1
    batch.seed[:] = rng.integers(0, 2**62, 16)
    together = sampler.sample(HostLogits(logits), batch).token_ids
    for row in range(16):
        alone = empty_batch(1, 3000)
        alone.temperature[:] = 1
        alone.seed[:] = batch.seed[row]
        assert sampler.sample(HostLogits(logits[row : row + 1]), alone).token_ids[0] == together[row]


def test_top_k_keeps_no_more_where_just_so_many_are_near_the_largest(sampler: Sampler) -> None:
    """All the others are far below, and together likelier than what is kept."""
    rows, vocab = 64, 500_000
    logits = np.full((rows, vocab), -12.5, np.float32)
    logits[:, [7, 70_001, 499_999]] = [0.0, -1.0, -11.5]
    batch = empty_batch(rows, vocab)
    batch.temperature[:] = 1
    batch.top_k[:] = 3
    batch.seed[:] = np.arange(rows)
    assert set(sampler.sample(HostLogits(logits), batch).token_ids) <= {7, 70_001, 499_999}


def test_greedy_takes_the_lowest_id_of_a_tie(sampler: Sampler) -> None:
    logits = np.zeros((1, 1000), np.float32)
    logits[0, [700, 41, 999]] = 3
    assert sampler.sample(HostLogits(logits), empty_batch(1, 1000)).token_ids[0] == 41


def test_rows_without_a_choice_say_so(sampler: Sampler) -> None:
    logits = np.zeros((4, 40), np.float32)
    logits[1, 39] = np.nan
    logits[2] = -np.inf
    batch = empty_batch(4, 40)
    batch.temperature[3] = 1
    batch.mask_bits = np.zeros((1, 2), np.uint32)
    batch.mask_row[3] = 0
    result = sampler.sample(HostLogits(logits), batch)
    np.testing.assert_array_equal(result.token_ids, [0, NO_TOKEN, NO_TOKEN, NO_TOKEN])
    assert result.num_failed == 3


@pytest.mark.parametrize(
    "change",
    [
        {"bias_start": [0, 1], "bias_ids": [40], "bias_values": [1.0]},
        {"forbidden_start": [0, 1], "forbidden_ids": [-1]},
        {"forbidden_start": [1, 0]},
        {"given_token_ids": [40]},
        {"repetition_penalty": [2.0], "num_tokens": [1], "token_table": [[99]]},
        {"repetition_penalty": [2.0], "num_tokens": [5]},
    ],
)
def test_ids_out_of_bounds_are_refused(sampler: Sampler, change: dict[str, list[object]]) -> None:
    batch = empty_batch(1, 40)
    changed = {name: np.array(value, getattr(batch, name).dtype) for name, value in change.items()}
    with pytest.raises(StepError, match="sampling"):
        sampler.sample(HostLogits(np.zeros((1, 40), np.float32)), dataclasses.replace(batch, **changed))


def test_arrays_that_ask_for_more_than_before_are_refused(sampler: Sampler) -> None:
    """Result arrays are sized once for each revision."""
    batch, logits = empty_batch(1, 40), HostLogits(np.zeros((1, 40), np.float32))
    assert sampler.sample(logits, batch).logprobs is None
    batch.num_logprobs[0] = 3
    with pytest.raises(StepError, match="no room for log-probabilities"):
        sampler.sample(logits, batch)
    result = sampler.sample(logits, dataclasses.replace(batch))
    assert result.logprobs is not None
    assert result.logprobs.shape == (1, 4)


def test_other_logits_or_another_batch_are_looked_at_anew(sampler: Sampler) -> None:
    first, second = (np.zeros((1, 40), np.float32) for _ in range(2))
    first[0, 7], second[0, 9] = 1, 1
    batch = empty_batch(1, 40)
    assert sampler.sample(HostLogits(first), batch).token_ids[0] == 7
    again = HostLogits(second)
    assert sampler.sample(again, batch).token_ids[0] == 9
    forbidding = {"forbidden_start": np.array([0, 1], np.int32), "forbidden_ids": np.array([9], np.int32)}
    assert sampler.sample(again, dataclasses.replace(batch, **forbidding)).token_ids[0] == 0
    second[0, 11] = 2
    assert sampler.sample(again, batch).token_ids[0] == 11


def test_columns_are_in_the_order_of_the_native_struct() -> None:
    """Pointers have no types in ctypes: a parameter in another place would be read as its neighbour."""
    header = (Path(__file__).parents[2] / "kernels/include/appliance_abi.h").read_text()
    fields, _, _ = header.partition("} appl_sampling;")[0].rpartition("{")[2].partition("int32_t *token_ids")
    code = re.sub(r"/\*.*?\*/", "", fields, flags=re.S)
    names = re.findall(r"(\w+)(?=[,;])", code)
    assert names == [name for name, _ in SamplingCall._fields_][: len(names)]
    native = {
        name: kind
        for kind, group in re.findall(r"(float|u?int\d+_t)\s*([^;]*);", code)
        for name in re.findall(r"\w+", group)
    }
    kinds = {"f32": "float", "i32": "int32_t"}
    assert [native[column.name] for column in COLUMNS] == [kinds[column.dtype] for column in COLUMNS]
    assert [each.name for each in dataclasses.fields(SamplingBatch)][: len(COLUMNS)] == [each.name for each in COLUMNS]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_the_bounds_of_a_parameter_leave_rows_a_token(sampler: Sampler, column: SamplingColumn) -> None:
    """At either end, alone and beside the ends of the others, native and oracle draw the same token."""
    rng = np.random.default_rng(2)
    logits = HostLogits((8 * rng.standard_normal((1, 900))).astype(np.float32))
    others = [each for each in COLUMNS if each is not column]
    for value, ends in itertools.product((column.bound.low, column.bound.high), ("neutral", "low", "high")):
        batch = empty_batch(1, 900)
        batch.token_table = np.array([[3, 5, 7, 5]], np.int32)
        batch.num_tokens[:], batch.num_prompt_tokens[:], batch.seed[:] = 4, 2, 9
        for each in others:
            getattr(batch, each.name)[:] = each.neutral if ends == "neutral" else getattr(each.bound, ends)
        getattr(batch, column.name)[:] = value
        want, got = ReferenceSampler().sample(logits, batch), sampler.sample(logits, batch)
        assert got.token_ids.tolist() == want.token_ids.tolist(), (value, ends)
        assert 0 <= got.token_ids[0] < 900
