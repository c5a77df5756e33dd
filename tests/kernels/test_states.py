"""Operators with recurrent states: native against reference, and a sequence against its pieces."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from appliance.kernels.binding import load_kernel_set
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError, StepError
from appliance.kernels.execution import Graphs
from appliance.kernels.interface import Eager, Executable, KernelSet, StatePieces, StepInputs
from appliance.program.caches import KvShape
from appliance.program.slots import Span
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateShape, StateSpace
from tests.kernels.harness import Graph, batch_step, bind, execution_of, int32, logits_of

VOCABULARY = 64  # rows of random inputs
NUM_SLOTS = 8
LATER = 100  # a position
WITHOUT_GRAPHS = Graphs()
Piece = tuple[int, int, int]  # tokens, source, target


class Inputs:
    """Spans of random columns, side by side in one slot as fused projections write them."""

    def __init__(self, graph: Graph, *widths: int, scale: float = 1.0) -> None:
        rng = np.random.default_rng(7)
        self.graph, self.rng = graph, rng
        self.slot = graph.given((scale * rng.standard_normal((VOCABULARY, sum(widths) + 3))).astype(np.float32))
        starts = np.cumsum((3, *widths)).tolist()
        self.spans = [Span(self.slot, start, end - start) for start, end in pairwise(starts)]

    def vector(self, size: int) -> str:
        return self.graph.vector(self.rng.uniform(-1, 1, size).astype(np.float32))


Mixer = ShortConv | GatedDelta | StateSpace | RgLru


def short_conv(graph: Graph) -> Mixer:
    inputs = Inputs(graph, 150)
    (x,) = inputs.spans
    out = Span(graph.slot(150), 0, 150)
    return ShortConv(x, inputs.vector(150 * 4), out, 0, 4, inputs.vector(150), "silu")


def short_conv_in_place(graph: Graph) -> Mixer:
    inputs = Inputs(graph, 37)
    (x,) = inputs.spans
    return ShortConv(x, inputs.vector(37 * 3), x, 0, 3)


def delta(
    graph: Graph, key_heads: int, heads: int, key_dim: int, value_dim: int, *, by_channel: bool = False,
    in_place: bool = False, beta_scale: float = 1.0,
) -> Mixer:  # fmt: skip
    decays = heads * key_dim if by_channel else heads
    inputs = Inputs(graph, key_heads * key_dim, key_heads * key_dim, heads * value_dim, decays, heads)
    q, k, v, decay, beta = inputs.spans
    out = v if in_place else Span(graph.slot(v.width), 0, v.width)
    a_log, dt_bias = inputs.vector(heads), inputs.vector(decays)
    return GatedDelta(q, k, v, decay, beta, a_log, dt_bias, out, 0, key_heads, heads, by_channel, beta_scale)


def space(
    graph: Graph, heads: int, head_dim: int, groups: int, state_size: int, *, by_state: bool = False,
    has_bias: bool = True, in_place: bool = False, limits: tuple[float, float] = (0.0, float("inf")),
) -> Mixer:  # fmt: skip
    inputs = Inputs(graph, heads * head_dim, groups * state_size, groups * state_size, heads)
    x, b, c, dt = inputs.spans
    out = x if in_place else Span(graph.slot(x.width), 0, x.width)
    a_log, d = inputs.vector(heads * (state_size if by_state else 1)), inputs.vector(heads)
    dt_bias = inputs.vector(heads) if has_bias else None
    return StateSpace(x, b, c, dt, a_log, d, out, 0, heads, groups, dt_bias, *limits, by_state=by_state)


def rg_lru(graph: Graph, width: int, *, in_place: bool = False) -> Mixer:
    inputs = Inputs(graph, width, width, width)
    x, input_gate, recurrence_gate = inputs.spans
    out = x if in_place else Span(graph.slot(width), 0, width)
    decay, input_bias, recurrence_bias = (inputs.vector(width) for _ in range(3))
    return RgLru(x, input_gate, recurrence_gate, decay, input_bias, recurrence_bias, out, 0)


MIXERS: dict[str, Callable[[Graph], Mixer]] = {
    "short_conv": short_conv,
    "short_conv_in_place": short_conv_in_place,
    "delta": lambda graph: delta(graph, 2, 4, 32, 64),
    "delta_of_odd_widths": lambda graph: delta(graph, 1, 3, 20, 70, in_place=True, beta_scale=2.0),
    "delta_by_channel": lambda graph: delta(graph, 2, 2, 24, 16, by_channel=True),
    "delta_of_odd_widths_by_channel": lambda graph: delta(graph, 3, 3, 17, 33, by_channel=True),
    "space": lambda graph: space(graph, 4, 32, 2, 16, limits=(0.3, 1.0)),
    "space_of_odd_widths": lambda graph: space(graph, 3, 41, 1, 19, has_bias=False, in_place=True),
    "space_by_state": lambda graph: space(graph, 64, 1, 1, 16, by_state=True),
    "space_by_state_in_groups": lambda graph: space(graph, 42, 1, 2, 5, by_state=True, in_place=True),
    "rg_lru": lambda graph: rg_lru(graph, 128),
    "rg_lru_of_odd_width": lambda graph: rg_lru(graph, 83, in_place=True),
}


@pytest.fixture(params=MIXERS)
def mixer(request: pytest.FixtureRequest) -> Callable[[Graph], Mixer]:
    return MIXERS[request.param]


def make(
    kernel_set: KernelSet, build: Callable[[Graph], Mixer], num_threads: int = 2, graphs: Graphs = WITHOUT_GRAPHS
) -> Executable:
    graph = Graph()
    op = build(graph)
    graph.add(op)
    program = graph.program(op.out.slot, states=[StateShape(op.state_shape)])
    execution = execution_of(256, num_states=NUM_SLOTS, model_len=4096, num_threads=num_threads)
    return bind(kernel_set, graph, program, dataclasses.replace(execution, graphs=graphs))


def step_of(
    tokens: Sequence[Sequence[int]], pieces: Sequence[Sequence[Piece]], begun: Sequence[bool] | None = None
) -> StepInputs:
    """Each sequence's tokens and pieces. begun: whether it has earlier tokens; None: if its first piece has a source.
    Which position is not the first one does not matter to states."""
    if begun is None:
        begun = [bool(each) and each[0][1] >= 0 for each in pieces]
    cached = [LATER if is_begun else 0 for is_begun in begun]
    step = batch_step(tokens, cached, [list(range(16))] * len(tokens), 16)
    flat = [piece for each in pieces for piece in each]
    step.states = StatePieces(
        first=int32(np.cumsum([0, *map(len, pieces)])),
        start=int32(np.cumsum([0, *(length for length, _, _ in flat)])),
        source=int32([source for _, source, _ in flat]),
        target=int32([target for _, _, target in flat]),
    )
    return step


def random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, VOCABULARY, count).tolist()


def random_pieces(rng: np.random.Generator, count: int, begin: int, home: int, spare: int) -> list[Piece]:
    """Cuts tokens into pieces, some of them empty, that leave states in two slots, the last one in `home`."""
    cuts = sorted(rng.integers(0, count + 1, rng.integers(0, 4)).tolist())
    pieces, at = [], begin
    for first, end in pairwise((0, *cuts, count)):
        target = int(rng.choice([home, spare]))
        pieces.append((end - first, at, target))
        at = target
    return [*pieces, (0, at, home)]


def random_trace() -> list[StepInputs]:
    """Steps of three sequences that begin, go on, and begin anew."""
    rng, steps = np.random.default_rng(1), []
    begun = [False] * 3
    for _ in range(6):
        lengths = [int(rng.choice([0, 1, 7, 37, 45])) for _ in begun]
        begins = [home if is_begun and rng.random() < 0.8 else -1 for home, is_begun in enumerate(begun)]
        pieces = [random_pieces(rng, n, begins[s], s, 3 + s) for s, n in enumerate(lengths)]
        steps.append(step_of([random_tokens(rng, n) for n in lengths], pieces))
        begun = [True] * 3
    return steps


@functools.cache
def results_of_reference(mixer: Callable[[Graph], Mixer]) -> list[np.ndarray]:
    executable = make(load_kernel_set("reference"), mixer)
    return [logits_of(executable, step) for step in random_trace()]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_native_agrees_with_reference(native: CpuKernelSet, mixer: Callable[[Graph], Mixer], num_threads: int) -> None:
    executable = make(native, mixer, num_threads)
    wanted = results_of_reference(mixer)
    assert sum(map(len, wanted)) > 100
    for step, want in zip(random_trace(), wanted, strict=True):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(logits_of(executable, step), want, atol=2e-5, rtol=2e-4)


def test_pieces_and_batches_give_the_bits_of_one_run(native: CpuKernelSet, mixer: Callable[[Graph], Mixer]) -> None:
    rng = np.random.default_rng(3)
    tokens, others = random_tokens(rng, 130), random_tokens(rng, 9)
    executable = make(native, mixer)
    whole = logits_of(executable, step_of([tokens], [[(130, -1, 0)]]))
    last = logits_of(executable, step_of([[5]], [[(1, 0, 0)]]))
    in_pieces = step_of([tokens[:70]], [[(1, -1, 4), (30, 4, 0), (0, 0, 2), (39, 0, 5)]])
    parts = [logits_of(executable, in_pieces)]
    for at in range(70, 73):
        parts.append(logits_of(executable, step_of([others, [tokens[at]]], [[(9, -1, 1)], [(1, 5, 5)]]))[9:])
    parts.append(logits_of(executable, step_of([tokens[73:], others], [[(57, 5, 7)], [(9, 1, 1)]]))[:57])
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(logits_of(executable, step_of([[5]], [[(1, 7, 7)]])), last)
    from_snapshot = step_of([tokens[31:70], tokens[31:70]], [[(39, 2, 3)], [(39, 2, 6)]])
    np.testing.assert_array_equal(logits_of(executable, from_snapshot), np.concatenate([whole[31:70]] * 2))


def test_steps_without_tokens_copy_states(
    native: CpuKernelSet, reference: KernelSet, mixer: Callable[[Graph], Mixer]
) -> None:
    for executable in make(native, mixer), make(reference, mixer):
        executable.run(step_of([[1, 2, 3]], [[(3, -1, 0)]]))
        executable.run(step_of([[]], [[(0, 0, 1), (0, -1, 0)]]))
        copied = logits_of(executable, step_of([[4], [4]], [[(1, 1, 2)], [(1, 0, 0)]], [True, False]))
        want = logits_of(executable, step_of([[1, 2, 3, 4], [4]], [[(4, -1, 0)], [(1, -1, 1)]]))[3:]
        np.testing.assert_allclose(copied, want, atol=1e-6)
        assert np.abs(want[0] - want[1]).max() > 1e-3


def test_a_state_that_is_not_finite_stays_in_its_slot(native: CpuKernelSet) -> None:
    graph = Graph()
    op = delta(graph, 1, 1, 16, 16)
    graph.weights[graph.operators[0].table].data[1] = np.nan  # type: ignore[union-attr]
    graph.add(op)
    executable = bind(
        native, graph, graph.program(op.out.slot, states=[StateShape(op.state_shape)]), execution_of(num_states=1)
    )
    assert np.isnan(logits_of(executable, step_of([[1, 2]], [[(2, -1, 0)]]))).all()
    assert np.isfinite(logits_of(executable, step_of([[2, 3]], [[(2, -1, 0)]]))).all()


BAD_PIECES: dict[str, tuple[list[list[Piece]], str]] = {
    "no such target": ([[(2, -1, NUM_SLOTS)], [(1, -1, 1)]], "a state that is not there"),
    "no target": ([[(2, -1, -1)], [(1, -1, 1)]], "a state that is not there"),
    "no such source": ([[(2, NUM_SLOTS, 0)], [(1, -1, 1)]], "a state that is not there"),
    "fewer tokens": ([[(1, -1, 0)], [(1, -1, 1)]], "are not its tokens"),
    "other tokens": ([[(1, -1, 0)], [(2, -1, 1)]], "are not its tokens"),
    "none": ([[], [(3, -1, 1)]], "are not its tokens"),
    "backwards": ([[(3, -1, 0), (-1, 0, 0)], [(1, -1, 1)]], "ends before it begins"),
    "two writers": ([[(2, -1, 0)], [(1, -1, 0)]], "write one state"),
    "a reader and a writer": ([[(2, -1, 0)], [(1, 0, 1)]], "that another writes"),
}


@pytest.mark.parametrize(("pieces", "message"), BAD_PIECES.values(), ids=BAD_PIECES.keys())
def test_bad_pieces_are_refused(native: CpuKernelSet, pieces: list[list[Piece]], message: str) -> None:
    executable = make(native, short_conv)
    with pytest.raises(StepError, match=message):
        executable.run(step_of([[1, 2], [3]], pieces))


def test_arrays_of_other_lengths_are_refused(native: CpuKernelSet) -> None:
    executable = make(native, short_conv)
    for name in ("first", "start", "source", "target"):
        step = step_of([[1, 2]], [[(2, -1, 0)]])
        assert step.states is not None
        setattr(step.states, name, np.append(getattr(step.states, name), np.int32(2)))
        with pytest.raises(StepError, match="differ in length"):
            executable.run(step)
    step = step_of([[1, 2]], [[(2, -1, 0)]])
    assert step.states is not None
    step.states.first = np.array([0, 7], np.int32)
    with pytest.raises(StepError, match="do not have all pieces"):
        executable.run(step)


def test_a_step_has_pieces_exactly_if_the_program_has_states(native: CpuKernelSet, reference: KernelSet) -> None:
    plain = Graph()
    without = plain.program(plain.given(np.ones((VOCABULARY, 4), np.float32)))
    for kernel_set in (native, reference):
        with pytest.raises(StepError, match="pieces"):
            make(kernel_set, short_conv).run(batch_step([[1, 2]], [0], [[0]], 16))
        with pytest.raises(StepError, match="pieces"):
            bind(kernel_set, plain, without, execution_of()).run(step_of([[1, 2]], [[(2, -1, 0)]]))


def test_states_have_memory_and_no_step_is_begun_early(native: CpuKernelSet, reference: KernelSet) -> None:
    executable, oracle = make(native, short_conv), make(reference, short_conv)
    size = NUM_SLOTS * 3 * 150 * 4
    assert oracle.memory_bytes["states"] == size
    assert size <= executable.memory_bytes["states"] < size + 4096
    assert list(executable.memory_bytes) == ["weights", "kv_cache", "states", "activations", "workspace"]
    assert isinstance(executable, Eager)
    assert executable.early_rows == 0
    with pytest.raises(StepError, match="states"):
        executable.start(step_of([[1]], [[(1, -1, 0)]]))


def test_a_program_without_caches_needs_no_blocks(native: CpuKernelSet) -> None:
    graph = Graph()
    op = short_conv(graph)
    graph.add(op)
    program = graph.program(op.out.slot, states=[StateShape(op.state_shape)])
    executable = bind(native, graph, program, execution_of(num_states=1, num_blocks=0))
    assert np.isfinite(logits_of(executable, step_of([[1, 2]], [[(2, -1, 0)]]))).all()
    program = msgspec.structs.replace(program, caches=(KvShape(1, 16, 16),))
    with pytest.raises(BindError, match="no block"):
        bind(native, graph, program, execution_of(num_states=1, num_blocks=0))


def test_what_does_not_fit_is_refused(native: CpuKernelSet) -> None:
    def refused(op: Mixer, states: Sequence[StateShape], num_states: int, graph: Graph, message: str) -> None:
        graph.add(op)
        with pytest.raises(BindError, match=message):
            bind(native, graph, graph.program(op.out.slot, states=states), execution_of(num_states=num_states))

    for build in MIXERS.values():
        graph = Graph()
        op = build(graph)
        rows, *rest = op.state_shape
        refused(op, [StateShape((rows + 1, *rest))], 1, graph, "another size")
        graph = Graph()
        refused(build(graph), [], 1, graph, "is not there")
        graph = Graph()
        refused(build(graph), [StateShape(op.state_shape)], 0, graph, "no slot")
        graph = Graph()
        refused(build(graph), [StateShape(op.state_shape)] * 2, 1, graph, "has no operator")
        graph = Graph()
        graph.add(build(graph))
        refused(build(graph), [StateShape(op.state_shape)], 1, graph, "have one state")
