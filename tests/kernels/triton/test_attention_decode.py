"""Decode attention against the reference set: groups, head widths, options, shares, rows that are not its own."""

import pytest
import torch

from appliance.kernels.gpu.triton.attention_decode import (
    DecodeTile,
    choose_decode,
    decode_attention,
    decode_workspace,
)
from tests.kernels.triton.oracle import DTYPES, assert_near, rest_of, span_of
from tests.kernels.triton.paged import CASES, Case, Paged

LENGTHS = (1, 0, 64, 203)


def attended(paged: Paged, tile: DecodeTile) -> torch.Tensor:
    case = paged.case
    out = span_of(torch.full((sum(paged.counts), case.heads * case.value_dim), 7.0, dtype=paged.dtype))
    size = decode_workspace(len(paged.counts), case.heads, case.value_dim, tile.splits)
    workspace = torch.full((size,), float("nan"))
    decode_attention(span_of(paged.q), paged.cache, paged.tables, paged.seq_lens, paged.query_start, out,
                     case.options, tile, workspace)  # fmt: skip
    assert rest_of(out).isnan().all()
    return out


@pytest.mark.parametrize(
    ("case", "splits"), [*((case, 4) for case in CASES), *((case, 1) for case in CASES[::3])], ids=str
)
def test_decode(case: Case, splits: int) -> None:
    dtype = DTYPES[case.head_dim == 64 and case.kv_dtype is None]  # products of f16 are slow under the interpreter
    paged = Paged(case, [1] * len(LENGTHS), LENGTHS, dtype)
    tile = DecodeTile(16, 32 if case.block_size == 16 else 64, splits)
    assert_near(attended(paged, tile), paged.expected(), dtype)


def test_rows_of_chunks_are_left_alone() -> None:
    case = CASES[2]
    paged = Paged(case, [1, 5, 1, 0], [70, 90, 30, 8], torch.float32)
    got, want = attended(paged, DecodeTile(16, 64, 2)), paged.expected()
    assert_near(got[[0, 6]], want[[0, 6]], torch.float32)
    assert (got[1:6] == 7).all()


def test_shares_need_a_workspace() -> None:
    paged = Paged(CASES[0], [1], [100], torch.float32)
    with pytest.raises(ValueError, match="2 shares need a workspace of 264 numbers"):
        decode_attention(paged.q, paged.cache, paged.tables, paged.seq_lens, paged.query_start, paged.q,
                         CASES[0].options, DecodeTile(16, 64, 2))  # fmt: skip


@pytest.mark.parametrize(
    ("num_seqs", "invariant", "splits"), [(1, False, 64), (16, False, 2), (256, False, 1), (1, True, 8), (256, True, 8)]
)
def test_shares_fill_the_device_or_are_fixed(num_seqs: int, invariant: bool, splits: int) -> None:
    tile = choose_decode(4, 128, 128, torch.bfloat16, "sm90", num_seqs, 8, 8192, 132, invariant)
    assert (tile.heads, tile.keys, tile.splits) == (16, 64, splits)
