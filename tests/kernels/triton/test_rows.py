"""Rows picked from tables, elementwise activations, and the largest logits."""

import pytest
import torch

from appliance.kernels.gpu.triton.activation import activation, gated_activation
from appliance.kernels.gpu.triton.argmax import CHUNKS, NO_TOKEN, argmax
from appliance.kernels.gpu.triton.gather import gather_rows
from appliance.kernels.reference.activations import activate
from tests.kernels.triton.oracle import DTYPES, assert_near, random, rest_of, span_of

IDS = torch.tensor([4, 0, 9, 4], dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_tables(dtype: torch.dtype) -> None:
    table, places, types = random(1, 6, 1030, dtype=dtype), random(2, 8, 1030), random(3, 2, 1030)
    positions, of_type = torch.tensor([0, 1, 2, 5]), torch.tensor([0, 1, 1, 0])
    got = span_of(torch.zeros(4, 1030, dtype=dtype))
    gather_rows(span_of(table), IDS, got, 0.5, 3, (positions, places, 2), (of_type, types))
    rows = torch.tensor([4, 0, 3, 4])
    assert_near(got, table[rows].float() * 0.5 + places[positions + 2] + types[of_type], dtype)
    assert rest_of(got).isnan().all()
    picked = torch.empty(2, 1030, dtype=dtype)
    gather_rows(table, IDS[:2], picked)
    assert torch.equal(picked, table[IDS[:2].long()])


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(dtype: torch.dtype) -> None:
    gate, up, out = (span_of(random(seed, 3, 1025, dtype=dtype)) for seed in range(3))
    activation(gate, out, "gelu")
    assert_near(out, activate(gate.float(), "gelu"), dtype)
    for kind in (None, "silu"):
        gated_activation(gate, up, out, kind)
        assert_near(out, (gate.float() if kind is None else activate(gate.float(), kind)) * up.float(), dtype)
    assert rest_of(out).isnan().all()


@pytest.mark.parametrize("width", [5, 3000, 40000])
def test_largest_logits(width: int) -> None:
    logits = random(1, 6, width).round()  # many are equal
    logits[1] = float("-inf")
    logits[2, 3] = float("nan")
    logits[3, :4] = float("-inf")
    logits[4] = 0.0
    logits[5, 2:4] = float("inf")
    out, workspace = torch.empty(6, dtype=torch.int32), torch.empty(6 * CHUNKS, dtype=torch.int32)
    argmax(span_of(logits), out, torch.empty(6 * CHUNKS), workspace)
    want = [int(row.numpy().argmax()) for row in logits]
    want[1] = want[2] = NO_TOKEN
    assert out.tolist() == want
