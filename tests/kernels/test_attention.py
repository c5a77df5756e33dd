"""Paged attention: prefill, chunks and decode in one batch; grouped heads, windows, caps, cache types, block sizes."""

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet
from appliance.program.caches import KvShape
from appliance.program.operators import KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of

pytestmark = pytest.mark.many_cases

VOCABULARY = 64
NUM_BLOCKS = 200
# bf16 and 8 bits: levels with a bf16 dot product round q and p as well.
TOLERANCE = {"f32": 2e-5, "f16": 2e-5} | dict.fromkeys(("bf16", "int8", "fp8_e4m3", "fp8_e5m2"), 1e-2)
# heads, KV heads, head_dim, block_size, window, soft cap
CASES = [
    (4, 2, 64, 16, None, None),
    (7, 1, 32, 32, None, None),
    (4, 4, 128, 16, 20, None),
    (6, 2, 80, 8, None, 30.0),
    (4, 1, 256, 16, 100, None),
    (2, 1, 40, 24, 50, 10.0),
    (2, 2, 320, 64, None, None),
]


def make(
    kernel_set: KernelSet, case: tuple[int, int, int, int, int | None, float | None], bounds: Execution
) -> Executable:
    heads, kv_heads, dim, _, window, cap = case
    rng = np.random.default_rng(1)
    graph = Graph()
    qkv = graph.given(rng.standard_normal((VOCABULARY, (heads + 2 * kv_heads) * dim)).astype(np.float32))
    out = graph.slot(heads * dim)
    k, v = Span(qkv, heads * dim, kv_heads * dim), Span(qkv, (heads + kv_heads) * dim, kv_heads * dim)
    q = Span(qkv, 0, heads * dim)
    graph.add(KvWrite(k, v, 0, kv_heads, dim))
    graph.add(PagedAttention(q, out, 0, heads, kv_heads, dim, dim**-0.5, window, cap))
    return bind(kernel_set, graph, graph.program(out, [KvShape(kv_heads, dim, dim)]), bounds)


def tables(block_size: int, *lengths: int) -> list[list[int]]:
    """Scattered blocks for sequences of the given lengths."""
    free = np.random.default_rng(2).permutation(NUM_BLOCKS).tolist()
    return [[free.pop() for _ in range(-(-length // block_size))] for length in lengths]


def tokens(*counts: int) -> list[list[int]]:
    rng = np.random.default_rng(sum(counts))
    return [rng.integers(0, VOCABULARY, count).tolist() for count in counts]


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_prefill_chunks_and_decode(
    native: CpuKernelSet, reference: KernelSet, case: tuple[int, int, int, int, int | None, float | None], kv_dtype: str
) -> None:
    block_size = case[3]
    bounds = execution_of(320, kv_dtype=kv_dtype, block_size=block_size, num_blocks=NUM_BLOCKS)
    expected, actual = make(reference, case, bounds), make(native, case, bounds)
    table = tables(block_size, 220, 60, 5)
    for counts, cached in (((200, 33, 1), (0, 0, 0)), ((1, 17, 1), (200, 33, 1)), ((1, 1, 1), (201, 50, 2))):
        step = batch_step(tokens(*counts), cached, table, block_size)
        want, got = logits_of(expected, step), logits_of(actual, step)
        assert np.abs(want - got).max() <= TOLERANCE[kv_dtype] * np.abs(want).max()


@pytest.mark.parametrize("window", [None, 700])
def test_one_long_decode_is_shared_among_threads(
    native: CpuKernelSet, reference: KernelSet, window: int | None
) -> None:
    case = (4, 1, 64, 16, window, None)
    bounds = execution_of(1024, kv_dtype="f32", num_blocks=NUM_BLOCKS, num_threads=3)
    table = tables(16, 1020)
    outputs = []
    for kernel_set in (reference, native):
        executable = make(kernel_set, case, bounds)
        executable.run(batch_step(tokens(1000), [0], table, 16))
        outputs.append(logits_of(executable, batch_step(tokens(1), [1000], table, 16)))
    np.testing.assert_allclose(outputs[1], outputs[0], atol=2e-5)


@pytest.mark.parametrize("model_len", [1300, 65_536])  # segments of one chunk, and of two
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(
    "case",
    [(4, 1, 64, 16, None, None), (6, 2, 80, 8, None, 30.0), (4, 1, 64, 16, 300, None), (14, 2, 64, 24, 700, None)],
)
def test_a_row_is_the_same_with_any_neighbours_and_cuts(
    native: CpuKernelSet, case: tuple[int, int, int, int, int | None, float | None], kv_dtype: str, model_len: int
) -> None:
    """The bits are equal: alone, when several threads share it; among others; and for every chunking of its prompt."""
    block_size, length = case[3], 1300
    bounds = execution_of(
        length + 64, model_len=model_len, kv_dtype=kv_dtype, block_size=block_size, num_blocks=5 * NUM_BLOCKS
    )
    words, others = tokens(length)[0], tokens(40, 90, 300, 7, 60)
    free = np.random.default_rng(4).permutation(5 * NUM_BLOCKS).tolist()
    table = [[free.pop() for _ in range(-(-length // block_size))] for _ in range(6)]
    ends = {1280, 1281, 1299}

    def decoded(cuts: list[int], *, beside: bool) -> dict[int, np.ndarray]:
        executable, rows, start = make(native, case, bounds), {}, 0
        for end in [*cuts, *range(1280, length)]:
            pieces, cached = [words[start:end]], [start]
            if beside and end >= 1280:
                pieces, cached = [*pieces, *others], [*cached, 0, 0, 0, 0, 0]
            logits = logits_of(executable, batch_step(pieces, cached, table[: len(pieces)], block_size))
            if end in ends:
                rows[end] = logits[end - start - 1].copy()
            start = end
        return rows

    alone = decoded([1279], beside=False)
    for cuts, beside in (([1279], True), ([100, 513, 600, 1279], False), ([7, 1270, 1279], True)):
        for end, row in decoded(cuts, beside=beside).items():
            np.testing.assert_array_equal(row, alone[end], f"{cuts}, {beside}, {end}")


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("case", [(8, 4, 64, 16, None, None), (6, 6, 80, 24, 200, 30.0), (10, 2, 32, 32, None, None)])
def test_many_decodes_whose_heads_are_read_together(
    native: CpuKernelSet, case: tuple[int, int, int, int, int | None, float | None], kv_dtype: str
) -> None:
    """Each of forty sequences gets the bits that it gets alone, when a thread takes single heads or segments."""
    block_size, num_seqs = case[3], 40
    cached = np.random.default_rng(5).integers(1, 600, num_seqs).tolist()
    bounds = execution_of(600, seqs=num_seqs, model_len=700, kv_dtype=kv_dtype, block_size=block_size, num_blocks=2000)
    free = np.random.default_rng(6).permutation(2000).tolist()
    table = [[free.pop() for _ in range(length // block_size + 1)] for length in cached]
    executable = make(native, case, bounds)
    for prompt, blocks in zip(tokens(*cached), table, strict=True):
        executable.run(batch_step([prompt], [0], [blocks], block_size))
    words = tokens(*[1] * num_seqs)
    together = logits_of(executable, batch_step(words, cached, table, block_size))
    for number in range(num_seqs):
        alone = logits_of(executable, batch_step([words[number]], [cached[number]], [table[number]], block_size))
        np.testing.assert_array_equal(together[number], alone[0], f"{number}")


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("f32", 1e-6), ("bf16", 1e-4)])
def test_the_softmax_is_as_exact_as_its_sums(native: CpuKernelSet, kv_dtype: str, tolerance: float) -> None:
    """Half of the keys score 0, half -n / 16 to base 2, of which bf16 holds all; with values of 1 and 0 what comes out
    is the quotient of two sums of probabilities, before these are rounded."""
    dim, half, query, scores = 64, 16, 65, np.arange(65) / 16
    table = np.zeros((66, 3 * dim), np.float32)
    table[:65, dim] = -scores  # keys of tokens 0 to 64; token 0 has the value 1
    table[0, 2 * dim :] = 1
    table[query, 0], table[query, dim] = dim**0.5 * np.log(2), -100  # asks, and scores nothing itself
    graph = Graph()
    qkv, out = graph.given(table), graph.slot(dim)
    k, v = Span(qkv, dim, dim), Span(qkv, 2 * dim, dim)
    graph.add(KvWrite(k, v, 0, 1, dim))
    graph.add(PagedAttention(Span(qkv, 0, dim), out, 0, 1, 1, dim, dim**-0.5))
    length = 2 * half + 1
    bounds = execution_of(length, kv_dtype=kv_dtype, num_blocks=NUM_BLOCKS)
    executable = bind(native, graph, graph.program(out, [KvShape(1, dim, dim)]), bounds)
    for token in range(1, 65):
        prompt = [0] * half + [token] * half + [query]
        got = logits_of(executable, batch_step([prompt], [0], tables(16, length), 16))[-1]
        np.testing.assert_allclose(got, 1 / (1 + 2.0 ** -scores[token]), rtol=tolerance)


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_copied_blocks_serve_another_sequence(native: CpuKernelSet, kv_dtype: str) -> None:
    executable = make(native, CASES[0], execution_of(64, kv_dtype=kv_dtype, num_blocks=NUM_BLOCKS))
    prompt = tokens(20)
    executable.run(batch_step(prompt, [0], [[3, 4]], 16))
    executable.copy_blocks([(3, 7), (4, 9)])
    original = logits_of(executable, batch_step(tokens(1), [20], [[3, 4]], 16))
    copied = logits_of(executable, batch_step(tokens(1), [20], [[7, 9]], 16))
    np.testing.assert_array_equal(copied, original)


def test_a_spoiled_sequence_does_not_spoil_the_next_owner_of_its_blocks(native: CpuKernelSet) -> None:
    heads, kv_heads, dim = 2, 1, 32
    values = np.random.default_rng(3).standard_normal((4, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    values[0] = np.nan
    graph = Graph()
    qkv, out = graph.given(values), graph.slot(heads * dim)
    graph.add(KvWrite(Span(qkv, 64, 32), Span(qkv, 96, 32), 0, kv_heads, dim))
    graph.add(PagedAttention(Span(qkv, 0, 64), out, 0, heads, kv_heads, dim, 1.0))
    executable = bind(native, graph, graph.program(out, [KvShape(kv_heads, dim, dim)]), execution_of(32))
    executable.run(batch_step([[0] * 16], [0], [[5]], 16))
    assert np.isfinite(logits_of(executable, batch_step([[1, 2, 3]], [0], [[5]], 16))).all()


def test_tokens_without_a_slot_are_not_stored(native: CpuKernelSet) -> None:
    executable = make(native, CASES[0], execution_of(64, num_blocks=NUM_BLOCKS))
    step = batch_step(tokens(8), [0], [[0]], 16)
    first = logits_of(executable, step)
    other = batch_step([[9] * 8], [0], [[0]], 16)
    other.slot_mapping[:] = -1
    executable.run(other)
    last = batch_step([tokens(8)[0][-1:]], [7], [[0]], 16)
    np.testing.assert_allclose(logits_of(executable, last)[0], first[7], atol=1e-6)
