"""Prefill attention against the reference set: whole prompts and chunks of several sequences, every option."""

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.tiles import prefill_tiles
from appliance.kernels.gpu.triton.attention_prefill import (
    PrefillTile,
    choose_prefill,
    prefill_attention,
)
from appliance.program.device_memory import num_prefill_tiles
from tests.kernels.triton.interpreted import numpy_rounds_alike
from tests.kernels.triton.oracle import DTYPES, assert_near, rest_of, span_of
from tests.kernels.triton.paged import CASES, Case, Paged

COUNTS, LENGTHS = (5, 1, 40, 3), (70, 5, 160, 0)


def attended(paged: Paged, tiles: np.ndarray, rows: int, keys: int) -> torch.Tensor:
    case = paged.case
    out = span_of(torch.full((sum(paged.counts), case.heads * case.value_dim), 7.0, dtype=paged.dtype))
    prefill_attention(span_of(paged.q), paged.cache, paged.tables, torch.from_numpy(tiles),
                      paged.query_start, paged.seq_lens, out, case.options, PrefillTile(rows, keys, 4, 3))  # fmt: skip
    assert rest_of(out).isnan().all()
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prefill(case: Case) -> None:
    dtype = DTYPES[case.head_dim == 64 and case.kv_dtype is None]  # products of f16 are slow under the interpreter
    counts, lengths = (COUNTS, LENGTHS) if case.heads <= 8 else ((5, 3), (70, 0))
    paged = Paged(case, counts, lengths, dtype)
    keys = 32 if case.head_dim > 128 or case.block_size == 16 else 64
    tiles = prefill_tiles(paged.query_start.numpy(), 32, skip_single=False, num_tiles=8)
    assert_near(attended(paged, tiles, 32, keys), paged.expected(), dtype)


def test_single_tokens_are_left_to_decode_attention() -> None:
    paged = Paged(CASES[0], COUNTS, LENGTHS, torch.float32)
    got, want = attended(paged, prefill_tiles(paged.query_start.numpy(), 32), 32, 64), paged.expected()
    assert (got[5] == 7).all()
    want[5] = 7
    assert_near(got, want, torch.float32)


def test_a_row_rounds_alike_in_every_chunk() -> None:
    case, length = Case(2, 1, 64, 64, window=70), 150
    whole = Paged(case, [length], [length], torch.float32)
    all_rows = attended(whole, prefill_tiles(whole.query_start.numpy(), 32), 32, 64)
    chunk = Paged(case, [41], [length], torch.float32)
    chunk.q = whole.q[length - 41 :]
    rows = attended(chunk, prefill_tiles(chunk.query_start.numpy(), 32), 32, 64)
    assert_near(rows, all_rows[length - 41 :], torch.float32)
    if not numpy_rounds_alike():
        pytest.skip("NumPy rounds a row by its place on this processor")
    assert torch.equal(rows, all_rows[length - 41 :])


def test_tiles_are_at_most_so_many() -> None:
    starts = np.array([0, 1, 65, 66, 200], np.int32)
    assert prefill_tiles(starts, 64).tolist() == [[1, 0], [3, 128], [3, 64], [3, 0]]
    assert len(prefill_tiles(starts, 64, skip_single=False)) <= num_prefill_tiles(200, 4, 64) == 7
    with pytest.raises(ValueError, match="4 tiles are more than 2"):
        prefill_tiles(starts, 64, num_tiles=2)


@pytest.mark.parametrize(
    ("head_dim", "arch", "expected"),
    [
        (128, "sm90", PrefillTile(64, 64, 4, 5)),
        (64, "sm80", PrefillTile(64, 64, 4, 5)),
        (256, "sm89", PrefillTile(64, 32, 8, 3)),
        (512, "gfx942", PrefillTile(32, 16, 8, 1)),
    ],
)
def test_tiles_fit_the_architecture(head_dim: int, arch: str, expected: PrefillTile) -> None:
    assert choose_prefill(head_dim, head_dim, 64, torch.bfloat16, arch) == expected
