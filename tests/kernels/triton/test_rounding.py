"""Activations rounded to e4m3 against torch's own conversion."""

import pytest
import torch

from appliance.kernels.gpu.float8 import to_float8
from appliance.kernels.gpu.triton.rounding import round_rows
from tests.kernels.triton.oracle import random, rest_of, span_of


def numbers() -> torch.Tensor:
    """Rows of large and small numbers, ties, exact powers of two, zeros, and what is not finite."""
    x = random(1, 8, 300)
    x[1] *= 10.0 ** torch.arange(-10, 5, 15 / 300)[:300]
    x[2], x[3] = torch.arange(300) * 0.5, 0.0
    x[4] = torch.linspace(-448, 448, 300)
    x[5] *= 1e-20
    x[6, 7], x[7, 9] = float("nan"), 1e30
    return x


def test_codes_and_scales() -> None:
    x = numbers()
    codes, scales = torch.empty(8, 300, dtype=torch.uint8), torch.empty(8)
    round_rows(span_of(x), codes, scales)
    want, want_scales = to_float8(x)
    is_number = ~x.isnan().any(1)
    assert torch.equal(scales[is_number], want_scales.flatten()[is_number])
    assert torch.equal(codes[is_number], want.view(torch.uint8)[is_number])
    assert len(codes.unique()) > 100
    assert codes[6, 7] & 127 == 127


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounded_numbers_stay_what_they_are(dtype: torch.dtype) -> None:
    x = numbers()[:6].to(dtype)
    got = span_of(torch.zeros(6, 300, dtype=dtype))
    round_rows(span_of(x), got)
    codes, scales = to_float8(x)
    assert torch.equal(got.float(), codes.float() * scales)
    again = torch.zeros(6, 300, dtype=dtype)
    round_rows(got, again)
    assert torch.equal(again, got)
    assert rest_of(got).isnan().all()
