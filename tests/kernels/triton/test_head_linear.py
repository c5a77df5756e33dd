"""A matrix for each head against the reference set: odd widths, tails, and rows beyond one tile."""

import pytest
import torch

from appliance.kernels.gpu.triton.head_linear import head_linear
from appliance.program.attention import HeadLinear
from appliance.program.slots import Span
from tests.kernels.triton.oracle import DTYPES, OracleStep, assert_near, random, rest_of, run, slot, span_of, widened


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "columns", "features", "tail", "rows"), [(3, 32, 96, 16, 5), (2, 80, 48, 0, 70), (1, 24, 64, 10, 1)]
)
def test_heads(heads: int, columns: int, features: int, tail: int, rows: int, dtype: torch.dtype) -> None:
    x, weight = random(1, rows, heads * columns, dtype=dtype), random(2, heads * features, columns)
    rest = random(3, rows, heads * tail, dtype=dtype) if tail else None
    got = span_of(torch.zeros(rows, heads * (features + tail), dtype=dtype))
    head_linear(span_of(x), weight.to(dtype), None if rest is None else span_of(rest), got, heads)
    step = OracleStep({0: widened(x), 1: torch.empty(got.shape)}, {"weight": weight.to(dtype).float()})
    of_tail = None
    if rest is not None:
        step.buffers[2], of_tail = widened(rest), Span(slot(2, heads * tail), 0, heads * tail)
    run(HeadLinear(Span(slot(0, x.shape[1]), 0, x.shape[1]), "weight", slot(1, got.shape[1]), heads, of_tail), step)
    assert_near(got, step.buffers[1], dtype)
    assert rest_of(got).isnan().all()


def test_a_row_rounds_alike_beside_any_number_of_others() -> None:
    x, weight = random(1, 66, 2 * 40), random(2, 2 * 32, 40)
    found = []
    for rows in (1, 20, 66):
        out = torch.empty(rows, 2 * 32)
        head_linear(x[:rows], weight, None, out, 2, batch_invariant=True)
        found.append(out[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
