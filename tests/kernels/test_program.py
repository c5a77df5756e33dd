"""A whole decoder layer in every weight layout: native against reference, and a sequence against its pieces."""

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.interface import Executable, KernelSet
from appliance.kernels.layout import ROUNDED_INPUT_LAYOUTS, Layout
from appliance.program import operators as ops
from appliance.program.caches import KvShape
from appliance.program.operators import StepProgram
from appliance.program.slots import Extent, Span
from tests.kernels.harness import Graph, batch_step, bind, dense, execution_of, logits_of, random_weight, whole

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCABULARY = 128, 4, 2, 32, 224, 96


def decoder(graph: Graph, layout: Layout) -> StepProgram:
    """One layer of the Llama kind with a tied head."""
    rng = np.random.default_rng(11)

    def weight(n: int, k: int) -> str:
        return graph.weight(random_weight(rng, layout, n, k, 32, "symmetric" if layout is Layout.INT4 else "none"))

    def ones(width: int) -> str:
        return graph.vector(np.ones(width, np.float32))

    angles = np.arange(1024)[:, None] * 1e4 ** (-np.arange(DIM // 2) / (DIM // 2))
    table = graph.weight(dense(np.concatenate((np.cos(angles), np.sin(angles)), axis=1)))
    hidden, normed, qkv = graph.slot(HIDDEN), graph.slot(HIDDEN), graph.slot((HEADS + 2 * KV_HEADS) * DIM)
    mixed, gate_up, inner = graph.slot(HEADS * DIM), graph.slot(2 * INNER), graph.slot(INNER)
    last, logits = graph.slot(HIDDEN, Extent.SAMPLED), graph.slot(VOCABULARY, Extent.SAMPLED)
    head = weight(VOCABULARY, HIDDEN)
    q, k = Span(qkv, 0, HEADS * DIM), Span(qkv, HEADS * DIM, KV_HEADS * DIM)
    v = Span(qkv, (HEADS + KV_HEADS) * DIM, KV_HEADS * DIM)
    graph.add(
        ops.Embed(head, hidden, 8.0),
        ops.RmsNorm(hidden, ones(HIDDEN), normed, 1e-6),
        ops.Linear(whole(normed), weight(qkv.width, HIDDEN), whole(qkv)),
        ops.HeadNorm(q, ones(DIM), HEADS, DIM, 1e-6),
        ops.Rope(q, table, HEADS, DIM, DIM),
        ops.Rope(k, table, KV_HEADS, DIM, DIM),
        ops.KvWrite(k, v, 0, KV_HEADS, DIM),
        ops.PagedAttention(q, mixed, 0, HEADS, KV_HEADS, DIM, DIM**-0.5),
        ops.Linear(whole(mixed), weight(HIDDEN, mixed.width), whole(hidden), accumulate=True),
        ops.RmsNorm(hidden, ones(HIDDEN), normed, 1e-6),
        ops.Linear(whole(normed), weight(2 * INNER, HIDDEN), whole(gate_up)),
        ops.GatedActivation(Span(gate_up, 0, INNER), Span(gate_up, INNER, INNER), inner, "silu"),
        ops.Linear(whole(inner), weight(HIDDEN, INNER), whole(hidden), accumulate=True),
        ops.GatherRows(hidden, last),
        ops.Linear(whole(last), head, whole(logits)),
        ops.SoftCap(logits, 30.0),
    )
    return StepProgram(tuple(graph.operators), tuple(graph.slots), logits, (KvShape(KV_HEADS, DIM, DIM),))


def make(kernel_set: KernelSet, layout: Layout, quantize: bool = True) -> Executable:
    graph = Graph()
    program = decoder(graph, layout)
    return bind(kernel_set, graph, program, execution_of(64, quantize=quantize))


def run_pieces(executable: Executable, tokens: list[int], pieces: list[int]) -> np.ndarray:
    results, start = [], 0
    for length in pieces:
        step = batch_step([tokens[start : start + length]], [start], [[9, 3, 30, 1]], 16)
        results.append(logits_of(executable, step))
        start += length
    return np.concatenate(results)


@pytest.mark.parametrize("layout", list(Layout))
def test_whole_program(native: CpuKernelSet, reference: KernelSet, layout: Layout) -> None:
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 50).tolist()
    want = run_pieces(make(reference, layout), tokens, [50])
    is_rounded = layout is Layout.BF16 or layout in ROUNDED_INPUT_LAYOUTS  # near ties fall to either side
    tolerance = 2e-2 if is_rounded else 1e-4
    for pieces in ([50], [20, 1, 1, 28]):
        got = run_pieces(make(native, layout), tokens, pieces)
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("layout", [Layout.F32, Layout.INT8])
def test_a_batch_gives_each_sequence_what_it_gets_alone(native: CpuKernelSet, layout: Layout) -> None:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, VOCABULARY, n).tolist() for n in (5, 17, 1, 30)]
    tables = [[4, 5], [6, 7], [8], [10, 11]]
    together = logits_of(make(native, layout), batch_step(prompts, [0] * 4, tables, 16))
    alone = [
        logits_of(make(native, layout), batch_step([p], [0], [t], 16)) for p, t in zip(prompts, tables, strict=True)
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)


def test_slot_reuse_is_sound(native: CpuKernelSet) -> None:
    """The same step twice gives the same bits, whatever the arena held."""
    executable = make(native, Layout.BF16)
    step = batch_step([list(range(20))], [0], [[2, 3]], 16)
    first = logits_of(executable, step)
    executable.run(batch_step([[90, 3, 77]], [0], [[8]], 16))
    np.testing.assert_array_equal(logits_of(executable, step), first)
