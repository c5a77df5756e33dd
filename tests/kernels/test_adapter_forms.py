"""What adapters change besides products of two matrices: vectors of a Linear's output, and whole matrices."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import Adapters, Executable, KernelSet, WeightChange
from appliance.kernels.layout import Layout
from appliance.program.adapters import AdapterLinear
from appliance.program.operators import Linear, StepProgram
from appliance.program.slots import whole
from tests.kernels.harness import Graph, logits_of, random_weight, to_bf16
from tests.kernels.test_adapters import MIXED, NUM_SLOTS, TOKENS, execution, step

WIDTH = 51


def bound(kernel_set: KernelSet, widths: Mapping[str, int], dtype: str, takes_whole: bool = False) -> Executable:
    """A Linear of these parts with a place for adapters, over random rows."""
    graph, rng = Graph(), np.random.default_rng(5)
    x = graph.given(rng.standard_normal((TOKENS, WIDTH)).astype(np.float32))
    out = graph.slot(sum(widths.values()))
    linear = Linear(whole(x), graph.weight(random_weight(rng, Layout.F32, out.width, WIDTH)), whole(out))
    graph.add(linear)
    plain = graph.program(out)
    place = AdapterLinear(linear.x, linear.out, tuple(widths), tuple(widths.values()), 8, takes_whole)
    at = plain.operators.index(linear) + 1
    adapted = StepProgram((*plain.operators[:at], place, *plain.operators[at:]), plain.slots, plain.logits)
    executable = kernel_set.bind(plain, graph.weights, execution(dtype), adapted=adapted)
    assert isinstance(executable, Adapters)
    return executable


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    made = rng.standard_normal(shape).astype(np.float32)
    return to_bf16(made) if dtype == "bf16" else made


def changes(dtype: str) -> list[dict[str, WeightChange]]:
    """By slot: vectors beside a product, vectors alone, and a part without a change beside them."""
    rng = np.random.default_rng(6)
    product = {"down": numbers(rng, dtype, 5, WIDTH), "up": numbers(rng, dtype, 70, 5)}
    return [
        {"a": WeightChange(**product, stretch=numbers(rng, dtype, 70), shift=numbers(rng, dtype, 70))},
        {"a": WeightChange(**product, shift=numbers(rng, dtype, 70)), "b": WeightChange(shift=numbers(rng, dtype, 21))},
        {"b": WeightChange(stretch=numbers(rng, dtype, 21))},
    ]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_vectors_stretch_and_shift(native: CpuKernelSet, reference: KernelSet, dtype: str) -> None:
    widths = {"a": 70, "b": 21}
    both = [bound(kernel_set, widths, dtype) for kernel_set in (reference, native)]
    for executable in both:
        assert isinstance(executable, Adapters)
        for slot, own in enumerate(changes(dtype)):
            executable.put_adapter(slot, own)
    want, got = (logits_of(executable, MIXED) for executable in both)
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)
    plain = logits_of(both[0], replace(MIXED, adapters=None))
    changed = np.abs(want - plain) > 1e-3
    assert changed[:3].any(0)[[0, -1]].all()  # slot 1 has both parts
    assert changed[5:14].any(0)[:70].all()
    assert not changed[5:14, 70:].any()
    assert not changed[14, :70].any()
    assert changed[14, 70:].any()
    assert not changed[3:5].any()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("width", [64, 150])
def test_a_whole_matrix_is_added(native: CpuKernelSet, reference: KernelSet, width: int, dtype: str) -> None:
    rng = np.random.default_rng(7)
    matrix = numbers(rng, dtype, width, WIDTH)
    low = WeightChange(numbers(rng, dtype, 8, WIDTH), numbers(rng, dtype, width, 8))
    both = [bound(kernel_set, {"a": width}, dtype, takes_whole=True) for kernel_set in (reference, native)]
    for executable in both:
        assert isinstance(executable, Adapters)
        executable.put_adapter(0, {"a": WeightChange(up=matrix)})
        executable.put_adapter(1, {"a": low})
    want, got = (logits_of(executable, MIXED) for executable in both)
    np.testing.assert_allclose(got, want, atol=5e-5, rtol=2e-5)
    alone = logits_of(both[1], step([0], [22]))
    mixed = logits_of(both[1], step([0, -1, 1, 1, 0, 0], [3, 2, 9, 1, 1, 6]))
    np.testing.assert_array_equal(mixed[[0, 1, 2, *range(15, 22)]], alone[[0, 1, 2, *range(15, 22)]])
    executable = both[1]
    assert isinstance(executable, Adapters)
    executable.put_adapter(0, {"a": low})  # a product in the place of a whole matrix
    slots = step([0], [22]), step([1], [22])
    np.testing.assert_array_equal(logits_of(executable, slots[0]), logits_of(executable, slots[1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (WeightChange(up=np.ones((70, WIDTH), np.float32)), "whole matrix"),
        (WeightChange(stretch=np.ones(69, np.float32)), "a vector of another size than 70"),
        (WeightChange(shift=np.ones((70, 1), np.float32)), "a vector of another size than 70"),
        (WeightChange(down=np.ones((2, WIDTH), np.float32)), "and the weight"),
        (WeightChange(), "is in nothing"),
    ],
)
def test_what_has_no_place_is_refused(native: CpuKernelSet, change: WeightChange, message: str) -> None:
    executable = bound(native, {"a": 70, "b": 21}, "f32")
    assert isinstance(executable, Adapters)
    assert NUM_SLOTS == 3
    with pytest.raises(BindError, match=message):
        executable.put_adapter(0, {"a": change})
