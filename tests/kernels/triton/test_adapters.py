"""Adapters of low rank for all rows of a step at once, against products with their maps."""

import numpy as np
import pytest
import torch

from appliance.kernels.binding import load_kernel_set
from appliance.kernels.gpu.adapters import TABLE_ENTRIES
from appliance.kernels.gpu.kernel_set import GpuKernelSet
from appliance.kernels.gpu.triton.adapters import add_adapters, padded_rank
from appliance.kernels.interface import Adapters, WeightChange
from appliance.program.device_memory import ADAPTER_SHARES
from tests.kernels.harness import logits_of
from tests.kernels.test_adapters import MIXED, bound, maps
from tests.kernels.triton.oracle import assert_near, random, rest_of, span_of, widened

TRITON = GpuKernelSet("torch", with_triton=True)
WIDTHS, COLUMNS, RANKS = (70, 17), 150, ((20, 3), (5, 0), (0, 16))  # of slots and parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_get_their_adapters(dtype: torch.dtype) -> None:
    slots = torch.tensor([0, -1, 2, 2, 1, *[0] * 15, -1, 1], dtype=torch.int32)
    rows, scales = len(slots), random(5, len(slots)).abs()
    x, out = random(1, rows, COLUMNS, dtype=dtype), random(2, rows, sum(WIDTHS), dtype=dtype)
    table, want, kept = torch.zeros(len(WIDTHS), len(RANKS), TABLE_ENTRIES, dtype=torch.int64), widened(out), []
    for part, width in enumerate(WIDTHS):
        start = sum(WIDTHS[:part])
        for slot, ranks in enumerate(RANKS):
            rank = ranks[part]
            down, up = random(7, rank, COLUMNS) / COLUMNS**0.5, random(8, width, rank)
            kept += [down, up]
            table[part, slot] = torch.tensor([down.data_ptr(), up.data_ptr(), rank, start, width])
            mine = slots == slot
            want[mine, start : start + width] += scales[mine, None] * (x[mine].float() @ down.T @ up.T)
    got = span_of(out)
    space = torch.full((ADAPTER_SHARES * rows * len(WIDTHS) * padded_rank(20),), float("nan"))
    add_adapters(span_of(x), got, table, kept[0], slots, scales, space, 20, max(WIDTHS))
    assert_near(got, want, dtype)
    assert rest_of(got).isnan().all()
    assert torch.equal(got[slots < 0], out[slots < 0])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_steps_are_those_of_the_reference(dtype: str) -> None:
    want, got = (logits_of(bound(each, 51, dtype), MIXED) for each in (load_kernel_set("reference"), TRITON))
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_slots_are_put_anew_and_dropped_and_vectors_are_added_by_torch() -> None:
    found = []
    vectors = {"k": WeightChange(**{name: np.full(37, 0.5, np.float32) for name in ("stretch", "shift")})}
    for kernel_set in (load_kernel_set("reference"), TRITON):
        executable = bound(kernel_set)
        assert isinstance(executable, Adapters)
        executable.drop_adapter(2)
        executable.put_adapter(0, maps(1, 64, "f32"))
        found.append([logits_of(executable, MIXED)])
        executable.put_adapter(1, maps(1, 64, "f32") | vectors)
        found[-1].append(logits_of(executable, MIXED))
    assert np.abs(found[0][0] - found[0][1]).max() > 0.1
    np.testing.assert_allclose(found[1], found[0], atol=2e-5)
