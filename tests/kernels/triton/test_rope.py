"""Rotary positions and cache writes against the reference set."""

import pytest
import torch

from appliance.kernels.gpu.triton.kv_codes import KINDS, KvTensors
from appliance.kernels.gpu.triton.rope import kv_write, rope, rope_kv_write
from appliance.kernels.reference.attention import LayerCache
from appliance.program.operators import Rope
from appliance.program.slots import Span
from tests.kernels.triton.oracle import DTYPES, OracleStep, assert_near, random, rest_of, run, slot, span_of, widened

TOKENS, BLOCKS, BLOCK_SIZE = 5, 6, 16
SLOTS = torch.tensor([17, -1, 95, 0, 40], dtype=torch.int32)
POSITIONS = torch.tensor([0, 3, 29, 7, 7], dtype=torch.int32)
# heads, KV heads, head_dim, value_dim, rotary_dim, interleaved
CASES = [
    (1, 1, 64, 64, 64, False),
    (14, 2, 64, 64, 64, False),
    (32, 8, 80, 40, 32, True),
    (9, 3, 192, 128, 64, True),
    (4, 4, 512, 512, 128, False),
]
Case = tuple[int, int, int, int, int, bool]


def rotated(x: torch.Tensor, table: torch.Tensor, heads: int, is_interleaved: bool) -> torch.Tensor:
    width = x.shape[1]
    step = OracleStep({0: widened(x)}, {"table": table})
    step.positions = POSITIONS.long()
    dims = width // heads, table.shape[1]
    run(Rope(Span(slot(0, width), 0, width), "table", heads, *dims, is_interleaved), step)
    return step.buffers[0]


def table_of(rotary: int) -> torch.Tensor:
    angles = random(9, 30, rotary // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def lane(heads: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A cache [BLOCKS, heads, BLOCK_SIZE, width] whose blocks are wider than it."""
    size = heads * BLOCK_SIZE * width
    return torch.zeros(BLOCKS, size + 32, dtype=dtype)[:, :size].view(BLOCKS, heads, BLOCK_SIZE, width)


def expected(k: torch.Tensor, v: torch.Tensor | None, heads: int, dtype: torch.dtype) -> LayerCache:
    """The reference's caches [BLOCKS, BLOCK_SIZE, heads, width] after a write."""
    keys = k.float().reshape(TOKENS, heads, -1)
    values = None if v is None else v.float().reshape(TOKENS, heads, -1)
    widths = [keys.shape[-1] if each is None else each.shape[-1] for each in (keys, values)]
    cache = LayerCache(*(torch.zeros(BLOCKS, BLOCK_SIZE, heads, width, dtype=dtype) for width in widths))
    cache.write(SLOTS, keys, values)
    return cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_rope(case: Case, dtype: torch.dtype) -> None:
    heads, _, dim, _, rotary, interleaved = case
    x, table = random(1, TOKENS, heads * dim, dtype=dtype), table_of(rotary)
    got = span_of(x)
    rope(got, POSITIONS, table, heads, interleaved)
    assert_near(got, rotated(x, table, heads, interleaved), dtype)
    assert rest_of(got).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_rope_and_write(case: Case, dtype: torch.dtype) -> None:
    heads, kv_heads, dim, value_dim, rotary, interleaved = case
    q, k = random(1, TOKENS, heads * dim, dtype=dtype), random(2, TOKENS, kv_heads * dim, dtype=dtype)
    v, table = random(3, TOKENS, kv_heads * value_dim, dtype=dtype), table_of(rotary)
    got_q, got_k, keys, values = span_of(q), span_of(k), lane(kv_heads, dim, dtype), lane(kv_heads, value_dim, dtype)
    rope_kv_write(got_q, got_k, span_of(v), POSITIONS, table, SLOTS, KvTensors(keys, values), heads, interleaved)
    assert_near(got_q, rotated(q, table, heads, interleaved), dtype)
    assert_near(got_k, rotated(k, table, kv_heads, interleaved), dtype)
    want = expected(rotated(k, table, kv_heads, interleaved), v, kv_heads, torch.float32)
    assert_near(keys.transpose(1, 2), want.keys, dtype)
    assert_near(values.transpose(1, 2), want.values, dtype)


@pytest.mark.parametrize("has_values", [True, False])
def test_write(has_values: bool) -> None:
    k, v = random(1, TOKENS, 3 * 80), random(2, TOKENS, 3 * 48) if has_values else None
    keys, values = lane(3, 80, torch.float16), lane(3, 48, torch.float16) if has_values else None
    kv_write(span_of(k), None if v is None else span_of(v), SLOTS, KvTensors(keys, values))
    want = expected(k, v, 3, torch.float16)
    assert torch.equal(keys.transpose(1, 2), want.keys)
    assert values is None or torch.equal(values.transpose(1, 2), want.values)


def lane_of_codes(heads: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as a device keeps them, behind each other in the bytes of a block."""
    size = heads * BLOCK_SIZE * width
    lane = torch.zeros(BLOCKS, heads * BLOCK_SIZE * (width + 4), dtype=torch.uint8)
    codes = lane[:, :size].view(dtype).view(BLOCKS, heads, BLOCK_SIZE, width)
    return codes, lane[:, size:].view(torch.float32).view(BLOCKS, heads, BLOCK_SIZE)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("case", [*CASES[1:3], None])
def test_codes_are_those_of_the_reference(case: Case | None, dtype: torch.dtype) -> None:
    """None: keys are written as they are. Among the numbers are large and small ones, ties, zeros and a NaN."""
    _, kv_heads, dim, value_dim, rotary, interleaved = case or CASES[2]
    k, v, table = random(2, TOKENS, kv_heads * dim), random(3, TOKENS, kv_heads * value_dim), table_of(rotary)
    v[0] *= 10.0 ** torch.arange(-9, 9, 18 / v.shape[1])[: v.shape[1]]
    v[2], v[3] = torch.arange(v.shape[1]) * 0.5 - 3, 0
    v[4, 1] = float("nan")
    (keys, key_scales), (values, value_scales) = (lane_of_codes(kv_heads, each, dtype) for each in (dim, value_dim))
    cache = KvTensors(keys, values, key_scales, value_scales)
    got_k = span_of(k)
    if case is None:
        kv_write(span_of(k), span_of(v), SLOTS, cache)
    else:
        rope_kv_write(None, got_k, span_of(v), POSITIONS, table, SLOTS, cache, 0, interleaved)
        k = rotated(k, table, kv_heads, interleaved)
        assert_near(got_k, k, torch.float32)
    codes = (torch.zeros(BLOCKS, BLOCK_SIZE, kv_heads, width, dtype=dtype) for width in (dim, value_dim))
    want = LayerCache(*codes, *(torch.zeros(BLOCKS, BLOCK_SIZE, kv_heads) for _ in range(2)))
    want.write(SLOTS, k.reshape(TOKENS, kv_heads, -1), v.reshape(TOKENS, kv_heads, -1))
    torch.testing.assert_close(value_scales.transpose(1, 2), want.value_scales, rtol=0, atol=0, equal_nan=True)
    is_number = value_scales.isnan().logical_not()[..., None]
    got_values, wanted_values = (x.view(torch.uint8) for x in (values, want.values.transpose(1, 2)))
    assert torch.equal(got_values * is_number, wanted_values * is_number)
    assert len(got_values.unique()) > 20
    torch.testing.assert_close(key_scales.transpose(1, 2), want.key_scales, rtol=1e-6, atol=0)
    got_keys, wanted_keys = (x.view(torch.uint8).int() for x in (keys, want.keys.transpose(1, 2)))
    assert (got_keys != wanted_keys).float().mean() < 0.01  # sums of rotated numbers round in another order
