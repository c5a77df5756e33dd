"""Operators that one kernel runs together."""

import functools

import msgspec
import torch

from appliance.kernels.gpu.calls import calls_of
from appliance.kernels.gpu.float8 import Float8Matrix
from appliance.kernels.gpu.fused import fuse
from appliance.kernels.gpu.parts import triton_parts
from appliance.kernels.layout import Layout
from appliance.program.operators import Add, KvWrite, Linear, Operator, RmsNorm, Rope
from appliance.program.slots import Span, whole
from tests.kernels.harness import Graph
from tests.kernels.test_program import decoder


def test_rotated_keys_are_written_by_the_kernel_that_rotates_them() -> None:
    program = decoder(Graph(), Layout.F32)
    calls = calls_of(program, triton_parts(), {}, is_by_rows=False)
    assert [op for _, op in calls] == list(program.operators), "there is a call for each operator"
    fused = [at for at, (run, _) in enumerate(calls) if isinstance(run, functools.partial)]
    writes = [at for at, op in enumerate(program.operators) if isinstance(op, KvWrite)]
    assert len(writes) > 0
    assert [at + 1 for at in fused] == writes


def test_other_keys_are_not() -> None:
    graph = Graph()
    slot, other = graph.slot(3 * 64), graph.slot(64)
    rotated = Rope(Span(slot, 0, 128), "table", 2, 64, 64)
    for k in (Span(slot, 128, 64), Span(slot, 0, 64), Span(other, 0, 64)):
        calls = [(lambda *_: None, rotated), (lambda *_: None, KvWrite(k, None, 0, 1, 64))]
        assert fuse(calls, {}) == calls


def rounding(after: Operator | None, kept: bool = False) -> list[bool]:
    """Returns which calls round, or take what is rounded, of two norms into one slot with a product each; another
    operator comes after the first of these."""
    graph = Graph()
    x, normed, out = (graph.slot(64) for _ in range(3))
    norm, product = RmsNorm(x, None, normed, 1e-6), Linear(whole(normed), "f8", whole(out))
    operators = [norm, product, *([] if after is None else [after]), norm, product]
    matrix = Float8Matrix(torch.zeros(64, 64, dtype=torch.float8_e4m3fn), torch.ones(64, 1))
    calls = fuse([(lambda *_: None, op) for op in operators], {"f8": matrix}, normed if kept else None)
    return [isinstance(run, functools.partial) for run, _ in calls]


def test_a_norm_rounds_what_fp8_products_alone_read() -> None:
    assert rounding(None) == [True] * 4
    assert rounding(None, kept=True) == [False] * 4
    slots = [Graph().slot(64) for _ in range(3)]
    x, normed, out = (msgspec.structs.replace(slot, index=index) for index, slot in enumerate(slots))
    for other in (
        Add(normed, x),
        Linear(whole(normed), "dense", whole(out)),
        Linear(Span(normed, 0, 32), "f8", whole(out)),
    ):
        assert rounding(other) == [False, False, False, True, True]
