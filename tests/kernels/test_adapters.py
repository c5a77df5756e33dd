"""Low-rank maps of adapters: the native operator, the memory of slots, and the program with places for them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_record

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError, StepError
from appliance.kernels.execution import Execution
from appliance.kernels.interface import (
    Adapters,
    Executable,
    KernelSet,
    Profiled,
    StepAdapters,
    StepInputs,
    WeightChange,
)
from appliance.kernels.layout import Layout
from appliance.layers.adapters import plain_positions
from appliance.program.adapters import AdapterLinear, adapter_slot_bytes
from appliance.program.operators import Activation, Linear, StepProgram
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, execution_of, int32, logits_of, random_weight, to_bf16

WIDTHS = {"q": 96, "k": 37, "v": 16}
MAX_RANK, NUM_SLOTS, TOKENS = 20, 3, 40
RANKS: Mapping[int, Mapping[str, int]] = {0: {"q": 20, "k": 8, "v": 1}, 1: {"k": 5}, 2: {"q": 3, "v": 16}}

Change = Callable[[StepInputs], StepInputs]


def execution(dtype: str = "f32", num_threads: int = 2) -> Execution:
    made = execution_of(TOKENS, num_threads=num_threads)
    return replace(
        made,
        limits=replace(made.limits, max_loras=NUM_SLOTS),
        numerics=replace(made.numerics, lora_dtype=dtype),
    )


def programs(graph: Graph, width: int) -> tuple[StepProgram, StepProgram]:
    """A Linear of three parts, and the same with a place for adapters."""
    rng = np.random.default_rng(3)
    x = graph.given(rng.standard_normal((TOKENS, width + 5)).astype(np.float32))
    out = graph.slot(7 + sum(WIDTHS.values()))
    given, made = Span(x, 5, width), Span(out, 7, out.width - 7)
    linear = Linear(given, graph.weight(random_weight(rng, Layout.F32, made.width, width)), made)
    graph.add(linear)
    plain = graph.program(out)
    place = AdapterLinear(given, made, tuple(WIDTHS), tuple(WIDTHS.values()), MAX_RANK)
    at = plain.operators.index(linear) + 1
    return plain, StepProgram((*plain.operators[:at], place, *plain.operators[at:]), plain.slots, plain.logits)


def maps(slot: int, width: int, dtype: str) -> dict[str, WeightChange]:
    rng = np.random.default_rng(slot)
    stored: Callable[[np.ndarray], Any] = to_bf16 if dtype == "bf16" else np.float32
    return {
        part: WeightChange(
            stored(rng.standard_normal((rank, width)) / width**0.5), stored(rng.standard_normal((WIDTHS[part], rank)))
        )
        for part, rank in RANKS[slot].items()
    }


def bound(kernel_set: KernelSet, width: int = 64, dtype: str = "f32", num_threads: int = 2) -> Executable:
    graph = Graph()
    plain, adapted = programs(graph, width)
    executable = kernel_set.bind(plain, graph.weights, execution(dtype, num_threads), adapted=adapted)
    assert isinstance(executable, Adapters)
    for slot in RANKS:
        executable.put_adapter(slot, maps(slot, width, dtype))
    return executable


def step(slots: list[int] | None, lengths: list[int], scales: list[float] | None = None) -> StepInputs:
    """Sequences of these lengths, whose tokens follow one another."""
    ends = np.cumsum([0, *lengths]).tolist()
    tokens = [list(range(begin, end)) for begin, end in pairwise(ends)]
    made = batch_step(tokens, [0] * len(lengths), [[8 * at + i for i in range(4)] for at in range(len(lengths))], 16)
    if slots is None:
        return made
    return replace(made, adapters=StepAdapters(int32(slots), np.array(scales or [1.0] * len(slots), np.float32)))


MIXED = step([1, -1, 0, 2, 0, 1], [3, 2, 9, 1, 1, 6], [1.0, 1.0, 0.5, 2.0, -1.0, 1.0])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("width", [64, 51])
def test_maps_are_added(native: CpuKernelSet, reference: KernelSet, width: int, dtype: str) -> None:
    want, got = (logits_of(bound(kernel_set, width, dtype), MIXED) for kernel_set in (reference, native))
    np.testing.assert_allclose(got, want, atol=2e-5)
    plain = logits_of(bound(reference, width, dtype), replace(MIXED, adapters=None))
    changed = np.abs(want - plain).max(axis=1) > 0.01
    assert changed.tolist() == [True] * 3 + [False] * 2 + [True] * 17


def test_a_row_does_not_depend_on_the_others(native: CpuKernelSet) -> None:
    """The last sequence alone, among others with its adapter, among others with other ones, and on one thread."""
    alone = logits_of(bound(native), step([0], [22]))[-6:]
    for slots, threads in ([0] * 6, 2), ([1, -1, 2, 1, 0, 0], 2), ([1, -1, 2, 1, 0, 0], 1):
        mixed = logits_of(bound(native, num_threads=threads), step(slots, [3, 2, 9, 1, 1, 6]))
        np.testing.assert_array_equal(mixed[-6:], alone)


def test_rows_without_an_adapter_are_those_of_the_plain_program(native: CpuKernelSet) -> None:
    executable = bound(native)
    plain = logits_of(executable, replace(MIXED, adapters=None))
    np.testing.assert_array_equal(logits_of(executable, MIXED)[3:5], plain[3:5])
    np.testing.assert_array_equal(logits_of(executable, step([-1] * 6, [3, 2, 9, 1, 1, 6])), plain)


def test_a_slot_is_put_anew_and_dropped(native: CpuKernelSet) -> None:
    executable = bound(native)
    assert isinstance(executable, Adapters)
    first = logits_of(executable, MIXED)
    executable.put_adapter(0, maps(1, 64, "f32"))
    of_one = logits_of(executable, replace(MIXED, adapters=StepAdapters(int32([1] * 6), np.ones(6, np.float32))))
    again = logits_of(executable, replace(MIXED, adapters=StepAdapters(int32([0] * 6), np.ones(6, np.float32))))
    np.testing.assert_array_equal(again, of_one)
    executable.drop_adapter(0)
    plain = logits_of(executable, replace(MIXED, adapters=None))
    np.testing.assert_array_equal(logits_of(executable, MIXED)[5:14], plain[5:14])
    executable.put_adapter(0, maps(0, 64, "f32"))
    np.testing.assert_array_equal(logits_of(executable, MIXED), first)


def test_memory_is_what_the_program_states(native: CpuKernelSet) -> None:
    _, adapted = programs(Graph(), 64)
    size = NUM_SLOTS * adapter_slot_bytes(adapted.operators, "bf16")
    assert 0 <= bound(native, dtype="bf16").memory_bytes["adapters"] - size < 4096  # whole pages


def test_steps_with_adapters_are_timed_by_the_operators_of_the_plain_program(native: CpuKernelSet) -> None:
    executable = bound(native)
    assert isinstance(executable, Profiled)
    seconds = np.zeros(len(executable.operator_work()))
    executable.time_operators(seconds)
    executable.run(MIXED)
    first = seconds.copy()
    assert (first > 0).all()
    executable.run(replace(MIXED, adapters=None))
    assert (seconds > first).all()
    executable.time_operators(None)
    last = seconds.copy()
    executable.run(MIXED)
    np.testing.assert_array_equal(seconds, last)


def test_what_is_split_belongs_to_its_linear() -> None:
    graph = Graph()
    plain, adapted = programs(graph, 64)
    assert plain_positions(plain, adapted) == [0, 1, 1, 2]
    linear = plain.operators[1]
    assert isinstance(linear, Linear)
    wide = replace_record(linear, activation="silu")
    out = linear.out.slot
    split = (adapted.operators[0], linear, adapted.operators[2], Activation(out, out, "silu"), adapted.operators[3])
    fused = StepProgram((plain.operators[0], wide, plain.operators[2]), plain.slots, plain.logits)
    assert plain_positions(fused, replace_record(fused, operators=split)) == [0, 1, 1, 1, 2]


def low_rank(width: int, columns: int, rank: int, down: int | None = None) -> WeightChange:
    return WeightChange(np.ones((down or rank, columns), np.float32), np.ones((width, rank), np.float32))


@pytest.mark.parametrize(
    ("slot", "given", "message"),
    [
        (3, {}, "there is no slot 3"),
        (-1, {}, "there is no slot -1"),
        (0, {"o": low_rank(96, 64, 4)}, "no place for an adapter of o"),
        (0, {"q": low_rank(37, 64, 4)}, r"\(37, 4\) @ \(4, 64\), and the weight \(96, 64\)"),
        (0, {"q": low_rank(96, 63, 4)}, "and the weight"),
        (0, {"q": low_rank(96, 64, 4, down=5)}, "and the weight"),
        (0, {"q": low_rank(96, 64, 21)}, "rank 21; the slots are for ranks up to 20"),
        (0, maps(0, 64, "bf16"), "uint16"),
    ],
)
def test_what_has_no_place_is_refused(
    native: CpuKernelSet, slot: int, given: dict[str, WeightChange], message: str
) -> None:
    executable = bound(native)
    assert isinstance(executable, Adapters)
    before = logits_of(executable, MIXED)
    with pytest.raises(BindError, match=message):
        executable.put_adapter(slot, given)
    np.testing.assert_array_equal(logits_of(executable, MIXED), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: replace(one, adapters=StepAdapters(int32([0]), np.ones(1, np.float32))), "one of each sequence"),
        (lambda one: replace(one, adapters=StepAdapters(int32([3] * 6), np.ones(6, np.float32))), "no such slot"),
        (lambda one: replace(one, adapters=StepAdapters(int32([0] * 6), np.ones(6))), "one of each sequence"),
    ],
)
def test_steps_with_bad_adapters_are_refused(native: CpuKernelSet, change: Change, message: str) -> None:
    with pytest.raises(StepError, match=message):
        bound(native).run(change(MIXED))


def test_a_program_without_places_refuses_adapters(native: CpuKernelSet, reference: KernelSet) -> None:
    graph = Graph()
    plain, _ = programs(graph, 64)
    for kernel_set, message in (native, "has no places for them"), (reference, "without places for adapters"):
        executable = kernel_set.bind(plain, graph.weights, execution())
        with pytest.raises(StepError, match=message):
            executable.run(MIXED)
