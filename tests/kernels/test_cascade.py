"""Decodes whose block tables begin with the same blocks: these are read once, and each gets the same bits as alone."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, KernelSet, StepInputs
from appliance.program.caches import KvShape
from appliance.program.operators import Add, KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of
from tests.kernels.test_attention import VOCABULARY, make

pytestmark = pytest.mark.many_cases

BLOCK, CHUNK, SEGMENT = 16, 256, 512  # keys: where a model of so many tokens is cut
LONG = 65_536
SHORT = 4096  # and its segments are a chunk
LEAST_SAVED = 1024
PLAIN = (4, 2, 32, BLOCK, None, None)


class Crowd:
    """Sequences, each with its words and its block table. A branch begins with the first `shared` words of another
    sequence, in the same blocks."""

    def __init__(self, block_size: int = BLOCK) -> None:
        self.block_size = block_size
        self.rng = np.random.default_rng(7)
        self.words: list[list[int]] = []
        self.tables: list[list[int]] = []
        self.computed: list[int] = []  # words that another sequence has computed
        self.num_blocks = 0

    def branch(self, length: int, shared: int = 0, of: int = 0) -> int:
        """`length` words and a last one, which a decode adds."""
        assert shared % self.block_size == 0
        words = self.rng.integers(0, VOCABULARY, length + 1).tolist()
        blocks, own = shared // self.block_size, -(-(length + 1) // self.block_size) - shared // self.block_size
        table = list(range(self.num_blocks, self.num_blocks + own))
        self.num_blocks += own
        self.words.append([*self.words[of][:shared], *words[shared:]] if shared else words)
        self.tables.append([*self.tables[of][:blocks], *table] if shared else table)
        self.computed.append(shared)
        return len(self.words) - 1

    def fill(self, executable: Executable) -> None:
        for words, table, start in zip(self.words, self.tables, self.computed, strict=True):
            if start < len(words) - 1:
                executable.run(batch_step([words[start:-1]], [start], [table], self.block_size))

    def decode(self, *which: int) -> StepInputs:
        chosen = [self.words[one] for one in which]
        tables = [self.tables[one] for one in which]
        return batch_step(
            [words[-1:] for words in chosen], [len(words) - 1 for words in chosen], tables, self.block_size
        )

    def shuffled(self) -> list[int]:
        return self.rng.permutation(len(self.words)).tolist()


def executable_for(
    kernel_set: KernelSet,
    case: tuple[int, int, int, int, int | None, float | None],
    crowd: Crowd,
    kv_dtype: str = "f32",
    num_threads: int = 2,
    model_len: int = LONG,
) -> Executable:
    executable = make(kernel_set, case, bounds_of(crowd, kv_dtype, num_threads, model_len))
    crowd.fill(executable)
    return executable


def bounds_of(crowd: Crowd, kv_dtype: str = "f32", num_threads: int = 2, model_len: int = LONG) -> Execution:
    return execution_of(
        3000,
        seqs=32,
        model_len=model_len,
        block_size=crowd.block_size,
        num_blocks=crowd.num_blocks,
        kv_dtype=kv_dtype,
        num_threads=num_threads,
    )


def check_rows(executable: Executable, crowd: Crowd, order: list[int]) -> None:
    """Checks that each row has the bits that it gets alone."""
    together = logits_of(executable, crowd.decode(*order))
    for row, one in enumerate(order):
        alone = logits_of(executable, crowd.decode(one))
        assert executable.shared_keys == 0
        np.testing.assert_array_equal(together[row], alone[0], f"{one}")


def tree(block_size: int = BLOCK) -> Crowd:
    """A prompt that many share, conversations that go on from it and split in turn, another prompt, and loners."""
    crowd = Crowd(block_size)
    unit = block_size * (CHUNK // block_size)
    root = crowd.branch(2 * unit + 100)
    for length in (2 * unit + 1, 2 * unit + 30, 3 * unit, 4 * unit + 5):
        crowd.branch(length, 2 * unit, root)
    talk = crowd.branch(6 * unit + 7, 2 * unit, root)
    for length in (5 * unit + 50, 6 * unit + 80, 6 * unit):
        crowd.branch(length, 5 * unit, talk)
    other = crowd.branch(5 * unit + 9)
    for length in (4 * unit + 200, 4 * unit + 1, 5 * unit):
        crowd.branch(length, 4 * unit, other)
    crowd.branch(30)
    crowd.branch(700)
    return crowd


@pytest.mark.parametrize("model_len", [SHORT, LONG])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize(
    "case", [PLAIN, (7, 1, 64, BLOCK, None, None), (8, 8, 80, 8, None, 30.0), (6, 3, 32, 24, None, None)]
)
def test_who_reads_together_gets_the_bits_that_it_gets_alone(
    native: CpuKernelSet, case: tuple[int, int, int, int, int | None, float | None], kv_dtype: str, model_len: int
) -> None:
    crowd = tree(case[3])
    executable = executable_for(native, case, crowd, kv_dtype=kv_dtype, model_len=model_len)
    order = crowd.shuffled()
    executable.run(crowd.decode(*order))
    assert executable.shared_keys > 3 * LEAST_SAVED
    check_rows(executable, crowd, order)


def test_rows_are_those_of_the_reference(native: CpuKernelSet, reference: KernelSet) -> None:
    crowd = tree()
    order = crowd.shuffled()
    got, expected = (logits_of(executable_for(one, PLAIN, crowd), crowd.decode(*order)) for one in (native, reference))
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("num_threads", [1, 3, 8])
def test_threads_share_what_two_sequences_share(native: CpuKernelSet, num_threads: int) -> None:
    """Eight threads take one segment each; their results are folded before the two sequences read on."""
    crowd = Crowd()
    first = crowd.branch(2900)
    crowd.branch(2950, 2560, first)
    for case in (PLAIN, (7, 1, 64, BLOCK, None, None)):
        executable = executable_for(native, case, crowd, num_threads=num_threads)
        executable.run(crowd.decode(1, 0))
        assert executable.shared_keys == 2560
        check_rows(executable, crowd, [1, 0])


@pytest.mark.parametrize(
    ("shared", "length", "others", "read_once"),
    [
        (1024, 1100, 1, 1024),
        (1024, 1100, 7, 7 * 1024),
        (1024 + CHUNK, 1400, 1, 1024),  # behind the first segment only whole ones
        (CHUNK, 300, 4, 4 * CHUNK),
        (CHUNK + BLOCK, 300, 4, 4 * CHUNK),
        (CHUNK - BLOCK, 300, 20, 0),
        (CHUNK, 300, 3, 0),  # too little
        (CHUNK, CHUNK, 4, 4 * CHUNK),  # the first own key opens a block
        (2 * SEGMENT, 2 * SEGMENT, 1, 2 * SEGMENT),
    ],
)
def test_what_is_read_once(native: CpuKernelSet, shared: int, length: int, others: int, read_once: int) -> None:
    crowd = Crowd()
    for _ in range(others + 1):
        crowd.branch(length, shared if crowd.words else 0)
    executable = executable_for(native, PLAIN, crowd)
    executable.run(crowd.decode(*range(others + 1)))
    assert executable.shared_keys == read_once
    check_rows(executable, crowd, crowd.shuffled())


def test_segments_of_one_chunk_are_cut_at_any(native: CpuKernelSet) -> None:
    crowd = Crowd()
    crowd.branch(1400)
    crowd.branch(1400, 1024 + CHUNK)
    executable = executable_for(native, PLAIN, crowd, model_len=SHORT)
    executable.run(crowd.decode(0, 1))
    assert executable.shared_keys == 1024 + CHUNK
    check_rows(executable, crowd, [1, 0])


def test_levels_read_each_key_once(native: CpuKernelSet) -> None:
    """Six share 512 keys, three of these 1,536 and two 2,560: 5 x 512 + 2 x 1,024 + 1 x 1,024."""
    crowd = Crowd()
    root = crowd.branch(600)
    for _ in range(2):
        crowd.branch(700, 512, root)
    talk = crowd.branch(2700, 512, root)
    crowd.branch(1600, 1536, talk)
    crowd.branch(2600, 2560, talk)
    executable = executable_for(native, PLAIN, crowd)
    order = crowd.shuffled()
    executable.run(crowd.decode(*order))
    assert executable.shared_keys == 5 * 512 + 2 * 1024 + 1024
    check_rows(executable, crowd, order)


def test_two_that_share_much_read_together_beside_one_that_shares_little(native: CpuKernelSet) -> None:
    crowd = Crowd()
    first = crowd.branch(2700)
    crowd.branch(300, CHUNK, first)
    crowd.branch(2600, 2560, first)
    executable = executable_for(native, PLAIN, crowd)
    executable.run(crowd.decode(0, 1, 2))
    assert executable.shared_keys == 2560
    check_rows(executable, crowd, [1, 2, 0])


def test_blocks_that_are_alike_behind_others_are_not_shared(native: CpuKernelSet) -> None:
    crowd = Crowd()
    for _ in range(2):
        crowd.branch(2048)
    crowd.tables[1][CHUNK // BLOCK :] = crowd.tables[0][CHUNK // BLOCK :]
    executable = executable_for(native, PLAIN, crowd)
    executable.run(crowd.decode(0, 1))
    assert executable.shared_keys == 0


def test_prompts_beside_them_read_by_themselves(native: CpuKernelSet) -> None:
    crowd = Crowd()
    for length in (1100, 1200, 1300):
        crowd.branch(length, 1024 if crowd.words else 0)
    executable = executable_for(native, PLAIN, crowd)
    prompt, table = crowd.words[1][1024:1100], crowd.tables[1]
    beside = crowd.decode(0, 2)
    alone = [logits_of(executable, beside), logits_of(executable, batch_step([prompt], [1024], [table], BLOCK))]
    last = crowd.words[0][-1:], crowd.words[2][-1:]
    tables = [crowd.tables[0], table, crowd.tables[2]]
    together = logits_of(executable, batch_step([last[0], prompt, last[1]], [1100, 1024, 1300], tables, BLOCK))
    assert executable.shared_keys == 1024
    np.testing.assert_array_equal(together[[0, -1]], alone[0])
    np.testing.assert_array_equal(together[1:-1], alone[1])


@pytest.mark.parametrize("window", [300, 1500])
def test_windows_are_read_by_each(native: CpuKernelSet, window: int) -> None:
    crowd = tree()
    executable = executable_for(native, (4, 2, 32, BLOCK, window, None), crowd)
    order = crowd.shuffled()
    executable.run(crowd.decode(*order))
    assert executable.shared_keys == 0
    check_rows(executable, crowd, order)


def test_a_layer_with_a_window_beside_one_without(native: CpuKernelSet) -> None:
    heads, kv_heads, dim = 4, 2, 32
    graph = Graph()
    table = np.random.default_rng(3).standard_normal((VOCABULARY, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    qkv, out, seen = graph.given(table), graph.slot(heads * dim), graph.slot(heads * dim)
    k, v = Span(qkv, heads * dim, kv_heads * dim), Span(qkv, (heads + kv_heads) * dim, kv_heads * dim)
    for layer, (slot, window) in enumerate(((out, 300), (seen, None))):
        graph.add(KvWrite(k, v, layer, kv_heads, dim))
        q = Span(qkv, 0, heads * dim)
        graph.add(PagedAttention(q, slot, layer, heads, kv_heads, dim, dim**-0.5, window))
    graph.add(Add(seen, out))
    crowd = tree()
    executable = bind(native, graph, graph.program(out, [KvShape(kv_heads, dim, dim)] * 2), bounds_of(crowd))
    crowd.fill(executable)
    order = crowd.shuffled()
    executable.run(crowd.decode(*order))
    assert executable.shared_keys > 3 * LEAST_SAVED
    check_rows(executable, crowd, order)


def test_a_step_forgets_what_the_one_before_shared(native: CpuKernelSet) -> None:
    crowd = Crowd()
    for _ in range(4):
        crowd.branch(1100, 1024 if crowd.words else 0)
    for _ in range(4):
        crowd.branch(1100)
    executable = executable_for(native, PLAIN, crowd)
    executable.run(crowd.decode(0, 1, 2, 3))
    assert executable.shared_keys == 3 * 1024
    check_rows(executable, crowd, [4, 5, 6, 7])
    check_rows(executable, crowd, [0, 4, 1, 5])


@pytest.mark.parametrize("seed", range(6))
def test_any_crowd(native: CpuKernelSet, seed: int) -> None:
    crowd, rng = Crowd(), np.random.default_rng(seed)
    crowd.branch(1200)
    for _ in range(23):
        of = int(rng.integers(0, len(crowd.words)))
        most = (len(crowd.words[of]) - 1) // BLOCK
        shared = int(rng.integers(most // 2, most + 1)) * BLOCK if rng.random() < 0.8 else 0
        crowd.branch(min(2900, max(1, shared + int(rng.integers(0, 900)))), shared, of)
    executable = executable_for(native, PLAIN, crowd, num_threads=1 + seed % 3)
    order = crowd.shuffled()
    executable.run(crowd.decode(*order))
    assert executable.shared_keys > LEAST_SAVED
    check_rows(executable, crowd, order)


def test_decodes_read_alone_where_that_is_asked_for(native: CpuKernelSet) -> None:
    crowd = tree()
    order, bounds = crowd.shuffled(), bounds_of(crowd)
    alone = make(native, PLAIN, replace(bounds, placement=replace(bounds.placement, share_prefixes=False)))
    crowd.fill(alone)
    shared = executable_for(native, PLAIN, crowd)
    expected = logits_of(shared, crowd.decode(*order)).copy()
    assert shared.shared_keys > 0
    assert (logits_of(alone, crowd.decode(*order)) == expected).all()
    assert alone.shared_keys == 0
