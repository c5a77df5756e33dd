"""A Linear that computes the gated activation after it: the bits are the same, and its own output is never written."""

import ctypes
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.layout import Layout
from appliance.program.fusion import gates_of_linears
from appliance.program.operators import Add, GatedActivation, Linear, Operator, StepProgram
from appliance.program.slots import Slot, Span
from tests.kernels.harness import Graph, execution_of, logits_of, plain_step, random_sub_groups, random_weight, whole

MIN_ROWS = 25  # kernels/cpu/linear.h
HIDDEN, INNER = 256, 144


class Block:
    """out = silu(x @ gate.T) * (x @ up.T), and the slot between."""

    def __init__(self, layout: Layout, rows: int, *, inner: int = INNER, sub_groups: bool = False) -> None:
        rng = np.random.default_rng(3)
        self.graph = Graph()
        self.x = self.graph.given(rng.standard_normal((rows, HIDDEN)).astype(np.float32))
        self.both, self.out = self.graph.slot(2 * inner), self.graph.slot(inner)
        make = random_sub_groups(rng, layout, 2 * inner, HIDDEN, 32) if sub_groups else None
        weight = self.graph.weight(make or random_weight(rng, layout, 2 * inner, HIDDEN))
        gate, up = Span(self.both, 0, inner), Span(self.both, inner, inner)
        self.linear = Linear(whole(self.x), weight, whole(self.both))
        self.gated = GatedActivation(gate, up, self.out, "silu")
        self.graph.add(self.linear, self.gated)
        self.rows = rows

    def bind(self, native: CpuKernelSet, result: Slot) -> CpuExecutable:
        program = self.graph.program(result)
        return native.bind(program, self.graph.weights, execution_of(self.rows, quantize=True))

    def run(self, native: CpuKernelSet, *, fused: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns the result, and then the second half of the slot between; by then, the logits use its first half. A
        reader of that slot prevents the fusion of the two operators."""
        if not fused:
            self.graph.add(Add(self.both, self.graph.slot(self.both.width)))
        executable = self.bind(native, self.out)
        result = logits_of(executable, plain_step(self.rows))
        floats = ctypes.c_float * (self.rows * self.both.width)
        between = np.array(floats.from_address(executable._at.slot(self.both)))[result.size :]
        executable.close()
        return result, between


@pytest.mark.parametrize("rows", [MIN_ROWS, 70, 1000])  # 1000: several blocks of rows
@pytest.mark.parametrize("layout", list(Layout))
def test_fused_and_apart_give_the_same_bits(native: CpuKernelSet, layout: Layout, rows: int) -> None:
    fused, untouched = Block(layout, rows).run(native, fused=True)
    apart, between = Block(layout, rows).run(native, fused=False)
    np.testing.assert_array_equal(fused, apart)
    assert np.any(apart)
    assert np.any(between)
    assert not np.any(untouched), "gate and up were written as well"


@pytest.mark.parametrize("layout", [Layout.INT4, Layout.INT5, Layout.INT6])
def test_sub_groups(native: CpuKernelSet, layout: Layout) -> None:
    fused, untouched = Block(layout, 70, sub_groups=True).run(native, fused=True)
    apart, _ = Block(layout, 70, sub_groups=True).run(native, fused=False)
    np.testing.assert_array_equal(fused, apart)
    assert not np.any(untouched)


@pytest.mark.parametrize(("rows", "inner"), [(MIN_ROWS - 1, INNER), (70, INNER + 8)])
def test_few_rows_and_halves_that_share_a_panel_stay_apart(native: CpuKernelSet, rows: int, inner: int) -> None:
    _, between = Block(Layout.F32, rows, inner=inner).run(native, fused=True)
    assert np.any(between)


def program_of(linear: dict[str, Any] | None = None, gated: dict[str, Any] | None = None) -> tuple[StepProgram, Slot]:
    """A block with other fields, and the slot between."""
    block = Block(Layout.F32, 4)
    block.graph.operators[1:] = [replace(block.linear, **linear or {}), replace(block.gated, **gated or {})]
    return block.graph.program(block.out), block.both


def test_only_a_plain_linear_whose_output_nobody_else_reads_may_be_fused() -> None:
    assert gates_of_linears(program_of()[0]) == [2]
    for changes in ({"bias": "b"}, {"activation": "relu"}, {"accumulate": True}):
        assert gates_of_linears(program_of(changes)[0]) == []
    program, both = program_of()
    readers: list[Operator] = [
        Add(both, both),
        Linear(Span(both, 0, HIDDEN), "w", whole(both)),
        GatedActivation(whole(both), whole(both), both, "silu"),
    ]
    for reader in readers:
        assert gates_of_linears(replace(program, operators=(*program.operators, reader))) == []
    assert gates_of_linears(replace(program, logits=both)) == []
    assert gates_of_linears(program_of(gated={"gate": Span(both, INNER, INNER)})[0]) == []


def test_claims_that_do_not_hold_are_refused(native: CpuKernelSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.kernels.cpu.native_programs.gates_of_linears", lambda program: [2])
    block = Block(Layout.F32, 30)
    block.graph.operators[2] = replace(block.gated, gate=block.gated.up)
    with pytest.raises(BindError, match="not the halves"):
        block.bind(native, block.out)
    block.graph.operators[1:3] = [replace(block.linear, accumulate=True), block.gated]
    with pytest.raises(BindError, match="does more than multiply"):
        block.bind(native, block.out)
    block.graph.operators.insert(2, Add(block.x, block.x))
    monkeypatch.setattr("appliance.kernels.cpu.native_programs.gates_of_linears", lambda program: [3])
    with pytest.raises(BindError, match="no linear comes before"):
        block.bind(native, block.out)
