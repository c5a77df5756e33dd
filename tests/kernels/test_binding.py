"""Binding: refusals and their messages, memory accounting, and lifetimes."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from appliance.base.native import library_path
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.cpu.library import Library
from appliance.kernels.errors import BindError, ExecutableError, KernelSetError, StepError
from appliance.kernels.execution import Placement
from appliance.kernels.interface import KernelSet
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.program.arena import Liveness
from appliance.program.caches import KvShape
from appliance.program.operators import Embed, Linear, RmsNorm, StepProgram
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, dense, execution_of, logits_of, plain_step, random_weight, whole


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(KernelSetError, match="unknown kernel set 'cpu-mmx'"):
        load_kernel_set("cpu-mmx")


def test_a_missing_library_says_how_to_build(tmp_path: object) -> None:
    with pytest.raises(KernelSetError) as caught:
        Library(library_path("no_such_level"))
    assert "pip install" in (caught.value.hint or "")


def test_a_processor_without_the_flags_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    from appliance.kernels.cpu import library

    library.load_level.cache_clear()
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(KernelSetError, match="needs processor flags that are not here: avx2"):
        load_kernel_set("cpu-avx2")
    library.load_level.cache_clear()


def linear_graph() -> tuple[Graph, str]:
    graph = Graph()
    x, out = graph.given(np.zeros((4, 32), np.float32)), graph.slot(16)
    name = graph.weight(random_weight(np.random.default_rng(0), Layout.INT8, 16, 32))
    graph.add(Linear(whole(x), name, whole(out)))
    graph.program(out)
    return graph, name


def bind_weight(native: CpuKernelSet, weight: CanonicalWeight) -> None:
    graph, name = linear_graph()
    graph.weights[name] = weight

    native.bind(StepProgram(tuple(graph.operators), tuple(graph.slots), graph.slots[-1]), graph.weights, execution_of())


def test_misfitting_weights_are_refused_by_name(native: CpuKernelSet) -> None:
    rng = np.random.default_rng(0)
    good = random_weight(rng, Layout.INT8, 16, 32)
    short = CanonicalWeight(Layout.INT8, 16, 32, good.data[:15], good.scale, None, 32)
    with pytest.raises(BindError, match=r"'w1' is \[16, 32\] but has 480 elements, not 512"):
        bind_weight(native, short)
    with pytest.raises(BindError, match="'w1' is int8 but its data is float32"):
        bind_weight(native, CanonicalWeight(Layout.INT8, 16, 32, np.zeros((16, 32), np.float32), good.scale, None, 32))
    with pytest.raises(BindError, match="without scales of whole groups"):
        bind_weight(native, CanonicalWeight(Layout.INT8, 16, 32, good.data, None, None, 32))
    with pytest.raises(BindError, match="group_size must divide 256"):
        bind_weight(native, random_weight(rng, Layout.INT8, 16, 24, 12))
    with pytest.raises(BindError, match="input's width differs"):
        bind_weight(native, random_weight(rng, Layout.F32, 16, 33))
    with pytest.raises(BindError, match="output's width differs"):
        bind_weight(native, random_weight(rng, Layout.F32, 17, 32))


def test_missing_weights_are_all_named(native: CpuKernelSet) -> None:
    graph = Graph()
    x = graph.slot(8)
    graph.add(Embed("table", x), RmsNorm(x, "norm", x, 1e-6))
    with pytest.raises(BindError, match="norm, table"):
        native.bind(graph.program(x), {}, execution_of())


def test_quantized_vectors_are_refused(native: CpuKernelSet) -> None:
    graph = Graph()
    x = graph.given(np.zeros((2, 32), np.float32))
    graph.add(RmsNorm(x, graph.weight(random_weight(np.random.default_rng(0), Layout.INT8, 1, 32)), x, 1e-6))
    with pytest.raises(BindError, match="must be dense"):
        native.bind(graph.program(x), graph.weights, execution_of())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", [0, 1, 99], "outside the vocabulary"),
        ("token_ids", [0, 1, -1], "outside the vocabulary"),
        ("positions", [0, 1, 5000], "beyond max_model_len"),
        ("slot_mapping", [[0, 1, 10**6]], "outside the cache"),
        ("query_start", [0, 2], "does not cover"),
        ("seq_lens", [2], "bad length"),
        ("block_tables", [[[900]]], "no such block"),
        ("sampled_rows", [3], "no token"),
        ("token_ids", [0, 1], "differ in length"),
    ],
)
def test_steps_out_of_bounds_are_refused(native: CpuKernelSet, field: str, value: object, message: str) -> None:
    graph = Graph()
    x = graph.given(np.zeros((4, 32), np.float32))
    executable = native.bind(graph.program(x, [KvShape(1, 16, 16)]), graph.weights, execution_of(8))
    step = batch_step([[0, 1, 2]], [0], [[5]], 16)
    executable.run(step)
    with pytest.raises(StepError, match=message):
        executable.run(replace(step, **{field: np.array(value, np.int32)}))


@pytest.mark.parametrize("strides", [(0, 4), (4, 4), (-4000, 4), (12, 4)])
def test_the_stride_of_a_single_row_means_nothing(native: CpuKernelSet, strides: tuple[int, int]) -> None:
    """numpy does not define it: a transposed or broadcast array may have any."""
    graph = Graph()
    x = graph.given(np.ones((4, 32), np.float32))
    executable = native.bind(graph.program(x, [KvShape(1, 16, 16)]), graph.weights, execution_of(8, block_size=8))
    step = batch_step([[0, 1, 2]], [6], [[5, 6]], 8)
    step.block_tables = np.lib.stride_tricks.as_strided(step.block_tables, (1, 1, 2), (0, *strides))
    assert logits_of(executable, step).shape == (3, 32)


def test_the_stride_within_a_column_means_nothing(native: CpuKernelSet) -> None:
    graph = Graph()
    x = graph.given(np.ones((4, 32), np.float32))
    executable = native.bind(graph.program(x, [KvShape(1, 16, 16)]), graph.weights, execution_of(8))
    step = batch_step([[0], [1]], [0, 0], [[5], [6]], 16)
    step.block_tables = np.lib.stride_tricks.as_strided(step.block_tables, (1, 2, 1), (0, 4, 400))
    assert logits_of(executable, step).shape == (2, 32)


def test_wrong_element_types_are_refused(native: CpuKernelSet) -> None:
    graph = Graph()
    executable = native.bind(graph.program(graph.given(np.zeros((4, 32), np.float32))), graph.weights, execution_of())
    step = plain_step(3)
    step.positions = step.positions.astype(np.int64)
    with pytest.raises(StepError, match="positions is not an array of int32"):
        executable.run(step)


def test_arrays_that_come_again_are_read_again(native: CpuKernelSet) -> None:
    graph = Graph()
    table = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)
    executable = native.bind(graph.program(graph.given(table)), graph.weights, execution_of())
    step = plain_step(2)
    step.token_ids = step.token_ids.copy()
    for ids in ([0, 1], [3, 2]):
        step.token_ids[:] = ids
        np.testing.assert_array_equal(logits_of(executable, step), table[ids])
    step.token_ids[0] = 99
    with pytest.raises(StepError, match="outside the vocabulary"):
        executable.run(step)
    wrong = replace(step, positions=step.positions.astype(np.int64))
    for _ in range(2):
        with pytest.raises(StepError, match="positions is not an array of int32"):
            executable.run(wrong)
    step.token_ids[:] = [1, 1]
    np.testing.assert_array_equal(logits_of(executable, step), table[[1, 1]])
    np.testing.assert_array_equal(logits_of(executable, plain_step(1)), table[:1])


def test_a_closed_executable_refuses(native: CpuKernelSet) -> None:
    graph = Graph()
    executable = native.bind(graph.program(graph.given(np.zeros((4, 32), np.float32))), graph.weights, execution_of())
    executable.close()
    with pytest.raises(ExecutableError, match="closed"):
        executable.run(plain_step(2))


def test_memory_is_accounted_for(native: CpuKernelSet) -> None:
    graph = Graph()
    x, out = graph.given(np.zeros((32, 64), np.float32)), graph.slot(48)
    graph.add(Linear(whole(x), graph.weight(random_weight(np.random.default_rng(0), Layout.INT4, 48, 64)), whole(out)))
    bounds = execution_of(num_blocks=100, kv_dtype="bf16")
    executable = native.bind(graph.program(out, [KvShape(2, 64, 64)] * 3), graph.weights, bounds)
    memory = executable.memory_bytes
    assert memory["kv_cache"] == 3 * 2 * 100 * 16 * 2 * 64 * 2
    assert memory["weights"] == 32 * 64 * 4 + 48 * 64 // 2 + 48 * 2 * 2  # table; nibbles; scales


class Recording(Mapping[str, CanonicalWeight]):
    """Records lookups; each is one translation."""

    def __init__(self, weights: Mapping[str, CanonicalWeight]) -> None:
        self.weights = weights
        self.reads: list[str] = []

    def __getitem__(self, name: str) -> CanonicalWeight:
        self.reads.append(name)
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def test_weights_are_read_once_in_order(native: CpuKernelSet) -> None:
    graph, _ = linear_graph()
    program = StepProgram(tuple(graph.operators), tuple(graph.slots), graph.slots[-1])
    recording = Recording({"unused": dense(np.zeros((1, 1))), **graph.weights})
    native.bind(program, recording, execution_of())
    assert recording.reads == list(graph.weights)


def test_slots_that_are_never_alive_together_share_memory() -> None:
    graph = Graph()
    first = graph.given(np.zeros((2, 16), np.float32))
    slots = [first]
    for _ in range(4):
        slots.append(graph.slot(16))
        graph.add(Linear(whole(slots[-2]), "w", whole(slots[-1])))
    program = graph.program(slots[-1])
    arena = Liveness.of(program).arena(lambda _: 1000)
    assert arena.size_bytes == 2 * 1024
    for a, b in itertools.pairwise(slots):
        assert arena.offsets[a.index] != arena.offsets[b.index]


def test_spans_within_a_wider_slot_are_checked(native: CpuKernelSet) -> None:
    graph = Graph()
    x, out = graph.given(np.zeros((2, 32), np.float32)), graph.slot(16)
    name = graph.weight(random_weight(np.random.default_rng(0), Layout.F32, 16, 64))
    graph.add(Linear(Span(x, 0, 64), name, whole(out)))
    with pytest.raises(BindError, match="wider than its stride"):
        native.bind(graph.program(out), graph.weights, execution_of())


def test_what_is_not_of_the_host_is_refused(native: CpuKernelSet, reference: KernelSet) -> None:
    graph = Graph()
    program = graph.program(graph.given(np.zeros((4, 32), np.float32)))
    elsewhere = replace(execution_of(), placement=Placement(1, "cuda"))
    half = [msgspec.structs.replace(slot, dtype="bf16") for slot in program.slots]
    assert half[0].row_bytes * 2 == program.slots[0].row_bytes
    for kernel_set in (native, reference):
        with pytest.raises(BindError, match="on cpu, not on cuda"):
            kernel_set.bind(program, graph.weights, elsewhere)
        with pytest.raises(BindError, match="slot 0 is bf16"):
            kernel_set.bind(msgspec.structs.replace(program, slots=tuple(half)), graph.weights, execution_of())
