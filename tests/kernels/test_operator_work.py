"""The least work of the operators of bound programs, and the seconds that they take."""

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.interface import Executable, KernelSet
from appliance.kernels.layout import Layout
from appliance.program.work import OperatorWork
from tests.kernels.harness import Graph, batch_step, bind, execution_of

from .test_program import DIM, HEADS, HIDDEN, INNER, KV_HEADS, VOCABULARY, decoder, make


def by_label(executable: Executable) -> dict[str, OperatorWork]:
    return {work.label: work for work in executable.operator_work()}


def test_work_of_a_program(native: CpuKernelSet) -> None:
    work = by_label(make(native, Layout.BF16))
    linears = [one for label, one in work.items() if label.startswith("linear")]
    shapes = [(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM), (HEADS * DIM, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN),
              (HIDDEN, VOCABULARY)]  # fmt: skip
    assert sorted(one.row_operations for one in linears) == sorted(2 * k * n for k, n in shapes)
    assert {one.unit for one in linears} == {"bf16"}
    assert all(one.row_operations <= one.weight_bytes for one in linears)  # 2 bytes an element, and padding
    assert work["attention"].key_bytes == 2 * KV_HEADS * DIM * 4
    assert work["attention"].visit_operations == 4 * HEADS * DIM
    assert work["rms_norm"] == OperatorWork("rms_norm")
    assert {one.kernel for one in linears} == {"bf16"}


@pytest.mark.parametrize(("quantize", "unit"), [(True, "int8"), (False, "f32")])
def test_quantized_weights_are_bound_by_what_they_meet(native: CpuKernelSet, quantize: bool, unit: str) -> None:
    linears = [one for one in make(native, Layout.INT4, quantize).operator_work() if one.label.startswith("linear")]
    assert {one.unit for one in linears} == {unit}


@pytest.mark.parametrize(("kv_dtype", "unit", "size"), [("f32", "f32", 4), ("f16", "f32", 2), ("bf16", "bf16", 2)])
def test_attention_is_bound_by_the_arithmetic_of_its_cache(
    native: CpuKernelSet, kv_dtype: str, unit: str, size: int
) -> None:
    graph = Graph()
    executable = bind(native, graph, decoder(graph, Layout.F32), execution_of(64, kv_dtype=kv_dtype))
    work = by_label(executable)["attention"]
    assert (work.unit, work.key_bytes) == (unit, 2 * KV_HEADS * DIM * size)


def check_timing(kernel_set: KernelSet) -> None:
    executable = make(kernel_set, Layout.F32)
    seconds = np.zeros(len(executable.operator_work()))
    step = batch_step([[1, 2, 3]], [0], [[0]], 16)
    executable.time_operators(seconds)
    executable.run(step)
    first = seconds.copy()
    assert (first > 0).all()
    executable.run(step)
    assert (seconds > first).all()
    executable.time_operators(None)
    seen = seconds.copy()
    executable.run(step)
    assert (seconds == seen).all()


def test_native_operators_are_timed_while_asked(native: CpuKernelSet) -> None:
    check_timing(native)


def test_reference_operators_are_timed_while_asked(reference: KernelSet) -> None:
    check_timing(reference)
