"""Linears whose input the operator before prepares: the bits are the same, and the slot between is never written."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.program.fusion import inputs_of_linears
from appliance.program.operators import Add, GatedActivation, LayerNorm, Linear, Operator, RmsNorm
from appliance.program.slots import Slot, Span
from tests.kernels.harness import (
    Graph,
    execution_of,
    logits_of,
    plain_step,
    random_quantized,
    random_sub_groups,
    random_weight,
    whole,
)

pytestmark = pytest.mark.many_cases

HIDDEN, INNER, OUT = 256, 1536, 48
MIN_ROWS = 25  # kernels/cpu/linear.h
MIN_WIDE_ROWS = 128  # kernels/cpu/linear.cpp: where a scale takes 256 columns
NARROW = [str(layout) for layout in Layout]  # their scales take 32 columns
WIDE = ["int8 a scale a row", "int4 sub-groups"]

# Levels whose tiles of many rows read these as they are packed. The others unpack them.
READ_AS_PACKED = {
    "int8 a scale a row": ("generic", "avx512", "avx512_vnni", "avx512_bf16", "amx", "emulated", "emulated_amx"),
    "int4 sub-groups": ("generic", "avx512"),
}


def make(rng: np.random.Generator, kind: str, n: int, k: int) -> CanonicalWeight:
    if kind == "int8 a scale a row":
        return random_quantized(rng, Layout.INT8, n, k, k)
    return random_sub_groups(rng, Layout.INT4, n, k, 32) if kind in WIDE else random_weight(rng, Layout(kind), n, k)


class Chain:
    """x, its norm or the gated activation of a Linear of it, and a Linear of that."""

    def __init__(self, rows: int) -> None:
        self.rows, self.graph, self.rng = rows, Graph(), np.random.default_rng(3)
        self.x = self.graph.given(self.rng.standard_normal((rows, HIDDEN)).astype(np.float32))
        self.out = self.graph.slot(OUT)

    def linear(self, kind: str, x: Slot, out: Slot, *, accumulate: bool = False) -> Linear:
        weight = self.graph.weight(make(self.rng, kind, out.width, x.width))
        return Linear(whole(x), weight, whole(out), accumulate=accumulate)

    def normed(self, kind: str, norm: str) -> Slot:
        """Makes a chain with a norm, also with a residual to which the norm adds x: another Linear shows the sum."""
        between, residual = self.graph.slot(HIDDEN), self.graph.slot(HIDDEN)
        weight = self.graph.vector(self.rng.standard_normal(HIDDEN).astype(np.float32))
        rms = RmsNorm(self.x, weight, between, 1e-5, residual)
        self.graph.add(
            self.linear("f32", self.x, residual),
            rms if norm == "rms" else LayerNorm(self.x, weight, weight, between, 1e-5, residual),
            self.linear(kind, between, self.out),
            self.linear("f32", residual, self.out, accumulate=True),
        )
        return between

    def gated(self, kind: str) -> Slot:
        both, between = self.graph.slot(2 * INNER), self.graph.slot(INNER)
        gate, up = Span(both, 0, INNER), Span(both, INNER, INNER)
        self.graph.add(
            self.linear(kind, self.x, both),
            GatedActivation(gate, up, between, "silu"),
            self.linear(kind, between, self.out),
            Add(self.x, self.x),  # so that `between` has memory that nothing else was in
        )
        return between

    def run(self, native: CpuKernelSet, between: Slot, *, alone: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns the result, and then the content of the slot between, after the part that may be the logits'. Unless
        `alone`, the slot has another reader, so that it is written."""
        if not alone:
            self.graph.add(Add(between, self.graph.slot(between.width)))
        program = self.graph.program(self.out)
        executable = native.bind(program, self.graph.weights, execution_of(self.rows, quantize=True))
        result = logits_of(executable, plain_step(self.rows))
        floats = ctypes.c_float * (self.rows * between.width)
        left = np.array(floats.from_address(executable._at.slot(between)))[result.size :]
        executable.close()
        return result, left


def both_ways(native: CpuKernelSet, rows: int, build: Callable[[Chain], Slot]) -> tuple[np.ndarray, ...]:
    """Checks that results with one reader and with two are equal; returns the slot between after each."""
    results, left = [], []
    for alone in (True, False):
        chain = Chain(rows)
        result, between = chain.run(native, build(chain), alone=alone)
        results.append(result)
        left.append(between)
    np.testing.assert_array_equal(*results)
    assert np.any(results[0])
    assert np.any(left[1])
    return tuple(left)


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("kind", NARROW + WIDE)
def test_norms(native: CpuKernelSet, kind: str, norm: str, rows: int) -> None:
    alone, _ = both_ways(native, rows, lambda chain: chain.normed(kind, norm))
    assert not np.any(alone), "the normed rows were written as well"


def test_one_row_is_normed_apart(native: CpuKernelSet) -> None:
    alone, _ = both_ways(native, 1, lambda chain: chain.normed("f32", "rms"))
    assert np.any(alone)


@pytest.mark.parametrize("rows", [MIN_ROWS, MIN_WIDE_ROWS, 600])  # 600: several blocks of rows
@pytest.mark.parametrize("kind", NARROW + WIDE)
def test_gated_activations(native: CpuKernelSet, request: pytest.FixtureRequest, kind: str, rows: int) -> None:
    alone, _ = both_ways(native, rows, lambda chain: chain.gated(kind))
    is_wide = rows >= MIN_WIDE_ROWS and request.node.callspec.params["library"] in READ_AS_PACKED.get(kind, ())
    assert np.any(alone) == (kind in WIDE and not is_wide), "who writes the activations"


def test_only_what_nobody_else_reads_goes_to_the_linear() -> None:
    chain = Chain(4)
    between = chain.normed("f32", "rms")
    program = chain.graph.program(chain.out)
    at = next(i for i, op in enumerate(program.operators) if isinstance(op, RmsNorm))
    norm, linear = program.operators[at], program.operators[at + 1]
    assert isinstance(norm, RmsNorm)
    assert isinstance(linear, Linear)
    assert inputs_of_linears(program) == [at]

    def ends_with(*operators: Operator) -> list[int]:
        return inputs_of_linears(replace(program, operators=(*program.operators[:at], *operators)))

    overwritten = replace(norm, x=chain.x, residual=None)
    assert ends_with(norm, linear, overwritten) == [at], "a later norm makes the slot anew"
    assert ends_with(norm, linear, overwritten, linear) == [at, at + 2]
    assert ends_with(norm, linear, replace(norm, x=between)) == []
    assert ends_with(norm, linear, replace(norm, residual=between)) == []
    assert ends_with(norm, linear, linear) == []
    assert ends_with(norm, linear, Add(between, chain.x)) == []
    assert ends_with(norm, Add(chain.x, chain.x), linear) == []
    assert ends_with(norm, replace(linear, x=Span(between, 0, 8))) == []
    assert ends_with(norm, replace(linear, out=whole(between))) == []
    assert ends_with(replace(norm, x=between), linear) == []
    assert inputs_of_linears(replace(program, logits=between)) == []
