"""Attention without a cache, means of sequences and types of tokens, at every level."""

from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import StepError
from appliance.kernels.interface import KernelSet, StepInputs
from appliance.program import operators as ops
from appliance.program.slots import Extent, Slot, Span
from tests.kernels.harness import Graph, bind, dense, execution_of, int32, logits_of, run_once

LENGTHS = (1, 7, 40, 19)
TOKENS = sum(LENGTHS)
EXECUTION = execution_of(TOKENS, model_len=64, num_blocks=0)


def step_of(lengths: tuple[int, ...] = LENGTHS) -> StepInputs:
    """Whole sequences; all rows sampled."""
    ends = np.cumsum([0, *lengths])
    return StepInputs(
        token_ids=np.arange(ends[-1], dtype=np.int32),
        positions=int32(np.concatenate([np.arange(length) for length in lengths])),
        slot_mapping=np.zeros((0, int(ends[-1])), np.int32),
        query_start=int32(ends),
        seq_lens=int32(lengths),
        block_tables=np.zeros((0, len(lengths), 4), np.int32),
        sampled_rows=np.arange(ends[-1], dtype=np.int32),
    )


def attention(
    graph: Graph, heads: int, kv_heads: int, width: int, reach: int | None = None, *, biased: bool = False
) -> Slot:
    rng = np.random.default_rng(width)
    columns = (heads + 2 * kv_heads) * width
    qkv = graph.given(rng.standard_normal((TOKENS, columns)).astype(np.float32))
    out = graph.slot(heads * width)
    q = Span(qkv, 0, heads * width)
    k, v = (Span(qkv, (heads + at * kv_heads) * width, kv_heads * width) for at in range(2))
    bias = graph.weight(dense(rng.standard_normal((heads, 127)).astype(np.float32))) if biased else None
    graph.add(ops.WholeAttention(q, k, v, out, heads, kv_heads, width, width**-0.5, reach, reach, bias))
    return out


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "reach", "biased"),
    [(3, 3, 32, None, False), (4, 2, 20, None, True), (2, 1, 64, 5, False), (2, 2, 128, 0, True), (1, 1, 8, 33, True)],
)
def test_native_attention_equals_the_reference(
    native: CpuKernelSet,
    reference: KernelSet,
    heads: int,
    kv_heads: int,
    width: int,
    reach: int | None,
    biased: bool,
) -> None:
    def build(graph: Graph) -> Slot:
        return attention(graph, heads, kv_heads, width, reach, biased=biased)

    found, expected = (run_once(kernels, build, step_of(), EXECUTION) for kernels in (native, reference))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_sequence_rounds_alike_in_every_batch(native: CpuKernelSet) -> None:
    graph = Graph()
    program = graph.program(attention(graph, 2, 2, 32))
    executable = bind(native, graph, program, EXECUTION)
    together = logits_of(executable, step_of())
    first = sum(LENGTHS[:2])
    alone = step_of((LENGTHS[2],))
    alone = replace(alone, token_ids=alone.token_ids + np.int32(first))
    assert np.array_equal(logits_of(executable, alone), together[first : first + LENGTHS[2]])
    executable.close()


def test_a_part_of_a_sequence_is_refused(native: CpuKernelSet) -> None:
    graph = Graph()
    executable = bind(native, graph, graph.program(attention(graph, 1, 1, 16)), EXECUTION)
    whole = step_of((5,))
    with pytest.raises(StepError, match="not whole"):
        executable.run(replace(whole, seq_lens=int32([6])))
    executable.close()


def test_means_of_sequences(native: CpuKernelSet, reference: KernelSet) -> None:
    values = np.random.default_rng(1).standard_normal((TOKENS, 37)).astype(np.float32)

    def run(kernels: KernelSet) -> np.ndarray:
        graph = Graph()
        x, out = graph.given(values), graph.slot(37, Extent.SAMPLED)
        graph.add(ops.MeanRows(x, out))
        program = ops.StepProgram(tuple(graph.operators), tuple(graph.slots), out)
        executable = bind(kernels, graph, program, EXECUTION)
        ends = np.cumsum(LENGTHS)
        found = logits_of(executable, replace(step_of(), sampled_rows=int32(ends - 1)))
        executable.close()
        return found

    starts = np.cumsum([0, *LENGTHS])
    expected = [values[at : at + length].mean(0) for at, length in zip(starts, LENGTHS, strict=False)]
    for kernels in (native, reference):
        np.testing.assert_allclose(run(kernels), expected, rtol=1e-5, atol=1e-6)


def test_types_of_tokens_are_added_to_their_embeddings(native: CpuKernelSet, reference: KernelSet) -> None:
    rng = np.random.default_rng(2)
    table, types = (rng.standard_normal((rows, 24)).astype(np.float32) for rows in (TOKENS, 2))

    def build(graph: Graph) -> Slot:
        out = graph.slot(24)
        graph.add(ops.Embed(graph.weight(dense(table)), out, 2.0, type_table=graph.weight(dense(types))))
        return out

    asked = int32([0, *[1] * (TOKENS - 1)])
    for kernels in (native, reference):
        for given, expected in ((asked, types[asked]), (None, types[:1])):
            found = run_once(kernels, build, replace(step_of(), token_types=given), EXECUTION)
            np.testing.assert_allclose(found, 2 * table + expected, rtol=1e-5)
    with pytest.raises(StepError, match="type"):
        run_once(native, build, replace(step_of(), token_types=asked * np.int32(2)), EXECUTION)
