"""Sinks, ALiBi, chunks, keys and values of two widths, and values that are columns of the keys (latent attention)."""

from dataclasses import dataclass

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet
from appliance.program.caches import KvShape
from appliance.program.operators import KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of
from tests.kernels.test_attention import NUM_BLOCKS, TOLERANCE, VOCABULARY, tables, tokens
from tests.kernels.test_cascade import LONG, Crowd, bounds_of, check_rows, tree

pytestmark = pytest.mark.many_cases


@dataclass(frozen=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 64
    value_dim: int = 64
    block_size: int = 16
    sinks: bool = False
    slopes: bool = False
    chunk: int | None = None
    window: int | None = None
    soft_cap: float | None = None
    latent: bool = False

    def executable(self, kernel_set: KernelSet, bounds: Execution) -> Executable:
        rng, graph = np.random.default_rng(1), Graph()
        widths = (self.heads * self.key_dim, self.kv_heads * self.key_dim, self.kv_heads * self.value_dim)
        qkv = graph.given(rng.standard_normal((VOCABULARY, sum(widths))).astype(np.float32))
        out = graph.slot(self.heads * self.value_dim)
        q, k, v = (Span(qkv, sum(widths[:at]), widths[at]) for at in range(3))
        slopes = tuple((-1.0) ** head * 0.3 / (head + 1) for head in range(self.heads))
        sinks = graph.vector(2 * rng.standard_normal(self.heads).astype(np.float32)) if self.sinks else None
        kept = None if self.latent else v
        graph.add(KvWrite(k, kept, 0, self.kv_heads, self.key_dim, self.value_dim))
        words = PagedAttention(
            q=q,
            out=out,
            cache=0,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.key_dim,
            scale=self.key_dim**-0.5,
            window=self.window,
            soft_cap=self.soft_cap,
            chunk=self.chunk,
            sinks=sinks,
            slopes=slopes if self.slopes else None,
            value_dim=self.value_dim,
            values_in_keys=self.latent,
        )
        graph.add(words)
        shape = KvShape(self.kv_heads, self.key_dim, self.value_dim, self.window or self.chunk, self.latent)
        return bind(kernel_set, graph, graph.program(out, [shape]), bounds)


CASES = {
    "sinks": Case(sinks=True),
    "sinks in a window": Case(8, 2, sinks=True, window=20, block_size=8),
    "sinks and a cap": Case(6, 2, 80, 80, sinks=True, soft_cap=5.0, block_size=24),
    "slopes": Case(slopes=True),
    "slopes in padded blocks": Case(7, 1, 40, 40, slopes=True, block_size=24),
    "chunks": Case(chunk=48),
    "chunks that blocks straddle": Case(4, 1, 32, 32, chunk=21, sinks=True),
    "narrower values": Case(4, 2, 96, 64),
    "wider values": Case(6, 2, 40, 136, block_size=24, window=30),
    "values in keys": Case(16, 1, 80, 64, latent=True),
    "values in keys of many heads": Case(60, 1, 72, 40, block_size=24, latent=True, sinks=True),
    "values in keys of one head": Case(1, 1, 576, 512, latent=True),
}


def codes_of(case: Case, kv_dtype: str) -> str:
    """Returns a type of 8 bits that the case's values can have: they are no columns of int8 keys."""
    return "fp8_e4m3" if kv_dtype == "int8" and case.latent else kv_dtype


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_prefill_chunks_and_decode(native: CpuKernelSet, reference: KernelSet, case: Case, kv_dtype: str) -> None:
    kv_dtype = codes_of(case, kv_dtype)
    bounds = execution_of(320, kv_dtype=kv_dtype, block_size=case.block_size, num_blocks=NUM_BLOCKS)
    expected, actual = case.executable(reference, bounds), case.executable(native, bounds)
    table = tables(case.block_size, 220, 60, 5)
    for counts, cached in (((200, 33, 1), (0, 0, 0)), ((1, 17, 1), (200, 33, 1)), ((1, 1, 1), (201, 50, 2))):
        step = batch_step(tokens(*counts), cached, table, case.block_size)
        want, got = logits_of(expected, step), logits_of(actual, step)
        assert np.abs(want - got).max() <= TOLERANCE[kv_dtype] * np.abs(want).max()


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(
    "case",
    [Case(sinks=True, slopes=True), Case(chunk=300, sinks=True), Case(6, 2, 96, 64), Case(16, 1, 80, 64, latent=True)],
    ids=["sinks and slopes", "chunks", "widths", "latent"],
)
def test_a_row_is_the_same_with_any_neighbours_and_cuts(native: CpuKernelSet, case: Case, kv_dtype: str) -> None:
    length = 1300
    bounds = execution_of(length + 64, model_len=length, kv_dtype=codes_of(case, kv_dtype), num_blocks=5 * NUM_BLOCKS)
    words, others = tokens(length)[0], tokens(40, 90, 7)
    table = [list(range(first, first + 100)) for first in range(0, 400, 100)]

    def last(cuts: list[int], *, beside: bool) -> np.ndarray:
        executable, start = case.executable(native, bounds), 0
        for end in cuts:
            executable.run(batch_step([words[start:end]], [start], table[:1], 16))
            start = end
        pieces, cached = [words[start:]], [start]
        if beside:
            pieces, cached = [*pieces, *others], [*cached, 0, 0, 0]
        return logits_of(executable, batch_step(pieces, cached, table[: len(pieces)], 16))[length - start - 1].copy()

    alone = last([1299], beside=False)
    for cuts, beside in (([1299], True), ([100, 513, 600, 1299], False), ([7, 1270], True)):
        np.testing.assert_array_equal(last(cuts, beside=beside), alone, f"{cuts}, {beside}")


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(
    "case",
    [Case(4, 2, 32, 32, sinks=True), Case(4, 2, 32, 32, slopes=True), Case(8, 1, 48, 32, latent=True, sinks=True)],
    ids=["sinks", "slopes", "latent"],
)
def test_shared_prefixes_are_read_once_and_rows_keep_their_bits(
    native: CpuKernelSet, case: Case, kv_dtype: str
) -> None:
    crowd = tree()
    executable = case.executable(native, bounds_of(crowd, codes_of(case, kv_dtype), model_len=LONG))
    crowd.fill(executable)
    order = crowd.shuffled()
    executable.run(crowd.decode(*order))
    assert executable.shared_keys > 0
    check_rows(executable, crowd, order)


def test_chunks_are_never_read_together(native: CpuKernelSet) -> None:
    crowd = Crowd()
    for shared in (0, 512, 512):
        crowd.branch(520, shared)
    executable = Case(chunk=256).executable(native, bounds_of(crowd))
    crowd.fill(executable)
    check_rows(executable, crowd, crowd.shuffled())
    executable.run(crowd.decode(0, 1, 2))
    assert executable.shared_keys == 0


def test_a_sink_that_takes_all_leaves_nothing(native: CpuKernelSet) -> None:
    graph = Graph()
    qkv, out = graph.given(np.ones((1, 96), np.float32)), graph.slot(32)
    graph.add(KvWrite(Span(qkv, 32, 32), Span(qkv, 64, 32), 0, 1, 32))
    sinks = graph.vector(np.full(1, 1e4, np.float32))
    graph.add(PagedAttention(Span(qkv, 0, 32), out, 0, 1, 1, 32, 1.0, sinks=sinks))
    executable = bind(native, graph, graph.program(out, [KvShape(1, 32, 32)]), execution_of(4))
    assert (logits_of(executable, batch_step([[0, 0]], [0], [[1]], 16)) == 0).all()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(4, 2, 32, 16, latent=True), "no columns of its keys"),
        (Case(chunk=8, window=8), "do not go together"),
    ],
)
def test_what_does_not_fit_together_is_refused(native: CpuKernelSet, case: Case, message: str) -> None:
    with pytest.raises(BindError, match=message):
        case.executable(native, execution_of(8))
