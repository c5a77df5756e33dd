"""Norms of rows and heads against the reference set."""

import pytest
import torch

from appliance.kernels.gpu.float8 import to_float8
from appliance.kernels.gpu.triton.norm import head_norm, norm
from appliance.program.operators import HeadNorm, LayerNorm, RmsNorm
from appliance.program.record import NormKind
from appliance.program.slots import Span
from tests.kernels.triton.oracle import DTYPES, OracleStep, assert_near, random, rest_of, run, slot, span_of, widened


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(
    ("rows", "width", "has_residual", "has_weight"),
    [(1, 64, False, True), (3, 100, True, True), (2, 2500, True, False), (5, 7, False, False)],
)
def test_norm(kind: NormKind, rows: int, width: int, has_residual: bool, has_weight: bool, dtype: torch.dtype) -> None:
    x, residual = random(1, rows, width, dtype=dtype), random(2, rows, width, dtype=dtype)
    weight, bias = (random(seed, width) if has_weight else None for seed in (3, 4))
    step = OracleStep({0: widened(x), 1: widened(residual), 2: torch.empty(rows, width)})
    step.weights = {"weight": random(3, width), "bias": random(4, width)}
    slots = [slot(index, width) for index in range(3)]
    named, of = "weight" if has_weight else None, slots[1] if has_residual else None
    if kind == "rms":
        bias = None
        run(RmsNorm(slots[0], named, slots[2], 1e-5, of, 0.5), step)
    else:
        run(LayerNorm(slots[0], named, "bias" if has_weight else None, slots[2], 1e-5, of, 0.5), step)
    got, sums = span_of(torch.zeros_like(x)), span_of(residual)
    norm(span_of(x), weight, bias, got, 1e-5, kind, sums if has_residual else None, 0.5)
    assert_near(got, step.buffers[2], dtype)
    assert_near(sums, step.buffers[1], dtype)
    assert rest_of(got).isnan().all()
    assert rest_of(sums).isnan().all()


def test_parts_of_a_split_product_are_summed() -> None:
    parts, weight = random(1, 3, 4, 50), random(2, 50)
    got, want = torch.empty(2, 4, 50).unbind()
    norm(parts, weight, None, got, 1e-6)
    norm(parts.sum(0), weight, None, want, 1e-6)
    assert_near(got, want, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(
    ("heads", "dim", "by_head", "has_bias"),
    [(1, 64, False, False), (7, 80, True, True), (33, 128, False, True), (3, 512, True, False)],
)
def test_head_norm(kind: NormKind, heads: int, dim: int, by_head: bool, has_bias: bool, dtype: torch.dtype) -> None:
    x = random(1, 3, heads * dim, dtype=dtype)
    length = heads * dim if by_head else dim
    step = OracleStep({0: widened(x)}, {"weight": random(2, length), "bias": random(3, length)})
    bias = "bias" if has_bias else None
    run(HeadNorm(Span(slot(0, heads * dim), 0, heads * dim), "weight", heads, dim, 1e-6, kind, bias, by_head), step)
    got = span_of(x)
    head_norm(got, step.weights["weight"], step.weights["bias"] if has_bias else None, got, heads, 1e-6, kind, by_head)
    assert_near(got, step.buffers[0], dtype)
    assert rest_of(got).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_may_round_its_result(dtype: torch.dtype) -> None:
    x, plain = random(1, 3, 70, dtype=dtype), torch.empty(3, 70, dtype=dtype)
    got = span_of(torch.zeros(3, 70, dtype=dtype))
    norm(x, None, None, plain, 1e-6)
    norm(x, None, None, got, 1e-6, rounds=True)
    codes, scales = to_float8(plain)
    assert torch.equal(got.float(), codes.float() * scales)
    assert not torch.equal(got, plain)
