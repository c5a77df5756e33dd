"""Caches in groups: each with block tables of its own, in lanes of one pool, whatever their shapes."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Executable, KernelSet, StepInputs
from appliance.program.caches import KvShape
from appliance.program.operators import Add, KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of

BLOCK, NUM_BLOCKS, VOCABULARY, DIM = 16, 96, 64, 32
# KV heads, window: of layers of four query heads. Two groups, in two lanes of which one is wider than the other.
LAYERS = [(1, 20), (2, None), (4, 20), (1, None)]


def make(kernel_set: KernelSet, layers: list[tuple[int, int | None]], kv_dtype: str = "f32") -> Executable:
    """The sum of what the layers attend to."""
    rng = np.random.default_rng(1)
    graph, shapes = Graph(), []
    total = graph.given(np.zeros((VOCABULARY, 4 * DIM), np.float32))
    for cache, (kv_heads, window) in enumerate(layers):
        qkv = graph.given(rng.standard_normal((VOCABULARY, (4 + 2 * kv_heads) * DIM)).astype(np.float32))
        out = graph.slot(4 * DIM)
        width = kv_heads * DIM
        graph.add(KvWrite(Span(qkv, 4 * DIM, width), Span(qkv, 4 * DIM + width, width), cache, kv_heads, DIM))
        graph.add(PagedAttention(Span(qkv, 0, 4 * DIM), out, cache, 4, kv_heads, DIM, DIM**-0.5, window))
        graph.add(Add(out, total))
        shapes.append(KvShape(kv_heads, DIM, DIM, window))
    bounds = execution_of(200, block_size=BLOCK, num_blocks=NUM_BLOCKS, kv_dtype=kv_dtype)
    return bind(kernel_set, graph, graph.program(total, shapes), bounds)


class Table:
    """A sequence's words and its blocks of two groups. What has left the window of the first goes to others."""

    def __init__(self, free: list[int], length: int, seed: int) -> None:
        self.words = np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()
        self.free, self.blocks, self.num_computed, self.num_dropped = free, ([], []), 0, 0

    def grow(self, end: int) -> None:
        first = max(0, self.num_computed - 20 + 1) // BLOCK
        self.free[:0] = self.blocks[0][self.num_dropped : first]
        self.num_dropped = max(self.num_dropped, first)
        for table in self.blocks:
            while len(table) * BLOCK < end:
                table.append(self.free.pop(0))


def step(chunks: list[tuple[Table, int]]) -> StepInputs:
    """The next tokens of each, all rows sampled."""
    for table, count in chunks:
        table.grow(table.num_computed + count)
    groups = [
        batch_step(
            [table.words[table.num_computed : table.num_computed + count] for table, count in chunks],
            [table.num_computed for table, _ in chunks],
            [table.blocks[group] for table, _ in chunks],
            BLOCK,
        )
        for group in (0, 1)
    ]
    for table, count in chunks:
        table.num_computed += count
    return replace(
        groups[0],
        slot_mapping=np.concatenate([group.slot_mapping for group in groups]),
        block_tables=np.concatenate([group.block_tables for group in groups]),
    )


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_chunks_and_decodes_are_those_of_the_reference(
    native: CpuKernelSet, reference: KernelSet, kv_dtype: str
) -> None:
    """Blocks change groups all the time, and sequences decode beside prompts."""
    free = np.random.default_rng(2).permutation(NUM_BLOCKS).tolist()
    a, b, c = Table(free, 160, 3), Table(free, 120, 4), Table(free, 140, 5)
    sets = [make(kernel_set, LAYERS, kv_dtype) for kernel_set in (native, reference)]
    plan = [[(a, 50)], [(a, 1), (b, 70)], [(a, 33), (b, 1), (c, 90)], [(a, 1), (b, 1), (c, 1)], [(a, 60), (c, 40)]]
    plan += [[(a, 1), (b, 1), (c, 1)]] * 6
    for chunks in plan:
        inputs = step(chunks)
        got, expected = (logits_of(executable, inputs) for executable in sets)
        tolerance = 2e-5 if kv_dtype == "f32" else 1e-2
        assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()
    assert a.num_dropped > 4, "no block was given back"


def test_a_row_is_the_same_in_any_groups(native: CpuKernelSet) -> None:
    """To the bit what layers give whose windows nothing leaves, in one group."""
    words = np.random.default_rng(6).integers(0, VOCABULARY, 100).tolist()
    apart, together = make(native, LAYERS), make(native, [(heads, None) for heads, _ in LAYERS])
    short = words[:20]  # all within the window
    two = step([(Table(list(range(NUM_BLOCKS)), 20, 6), 20)])
    two.token_ids[:] = short
    one = batch_step([short], [0], [[7, 3]], BLOCK)
    np.testing.assert_array_equal(logits_of(apart, two), logits_of(together, one))


def test_a_copied_block_has_all_lanes_of_its_group(native: CpuKernelSet, reference: KernelSet) -> None:
    for kernel_set in (native, reference):
        executable = make(kernel_set, LAYERS)
        table = Table(list(range(NUM_BLOCKS)), 30, 8)
        executable.run(step([(table, 29)]))
        following = step([(table, 1)])
        expected = logits_of(executable, following)
        moved = {block: 90 - block for blocks in table.blocks for block in blocks}
        executable.copy_blocks(list(moved.items()))
        following.block_tables = np.vectorize(moved.__getitem__)(following.block_tables).astype(np.int32)
        slots = following.slot_mapping
        following = replace(
            following,
            slot_mapping=(np.vectorize(moved.__getitem__)(slots // BLOCK) * BLOCK + slots % BLOCK).astype(np.int32),
        )
        np.testing.assert_array_equal(logits_of(executable, following), expected)


def test_memory_is_the_lanes_of_all_blocks(native: CpuKernelSet, reference: KernelSet) -> None:
    """The wider cache of each lane counts: of 1 and 2 heads, and of 4 and 1."""
    for kernel_set in (native, reference):
        assert make(kernel_set, LAYERS).memory_bytes["kv_cache"] == NUM_BLOCKS * BLOCK * (2 + 4) * 2 * DIM * 4


def test_a_step_without_tables_of_some_group_is_refused(native: CpuKernelSet) -> None:
    executable = make(native, LAYERS)
    with pytest.raises(StepError, match="a group of caches has no block tables"):
        executable.run(batch_step([[1, 2]], [0], [[5]], BLOCK))


@pytest.mark.parametrize("group", [0, 1])
def test_tables_of_every_group_are_checked(native: CpuKernelSet, group: int) -> None:
    executable = make(native, LAYERS)
    inputs = step([(Table(list(range(NUM_BLOCKS)), 30, 8), 30)])
    executable.run(inputs)
    inputs = replace(inputs)
    inputs.block_tables[group, 0, 1] = NUM_BLOCKS
    with pytest.raises(StepError, match="no such block"):
        executable.run(inputs)
