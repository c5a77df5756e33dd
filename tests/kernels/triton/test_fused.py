"""Operators that one kernel runs together."""

import functools

from appliance.kernels.gpu.fused import fuse
from appliance.kernels.gpu.kernel_set import calls_of
from appliance.kernels.gpu.parts import triton_parts
from appliance.kernels.layout import Layout
from appliance.program.operators import KvWrite, Rope
from appliance.program.slots import Span
from tests.kernels.harness import Graph
from tests.kernels.test_program import decoder


def test_rotated_keys_are_written_by_the_kernel_that_rotates_them() -> None:
    program = decoder(Graph(), Layout.F32)
    calls = calls_of(program, triton_parts(), is_by_rows=False)
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
        assert fuse(calls) == calls
