"""Caches of 8 bits: codes and scales are those of the reference, and a number is as near as its type allows."""

import numpy as np
import pytest
import torch

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.interface import KernelSet
from appliance.kernels.reference.kv_codes import CODE_DTYPES, to_codes, turned
from appliance.program.caches import KvShape
from appliance.program.operators import KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of
from tests.kernels.test_attention import NUM_BLOCKS, make, tables, tokens

DIM = 40
STEP = {"int8": 1 / 254, "fp8_e4m3": 1 / 16, "fp8_e5m2": 1 / 8}  # the error: of the largest number; of each number


@pytest.mark.parametrize("kv_dtype", CODE_DTYPES)
def test_a_number_is_off_by_half_a_step(kv_dtype: str) -> None:
    rng = np.random.default_rng(7)
    x = torch.from_numpy(rng.standard_normal((50, 64)).astype(np.float32)) * torch.logspace(-20, 20, 50)[:, None]
    codes, scales = to_codes(x, CODE_DTYPES[kv_dtype])
    largest = x.abs().amax(-1, keepdim=True)
    allowed = STEP[kv_dtype] * (largest if kv_dtype == "int8" else x.abs() + largest * 2**-14)
    assert ((codes.float() * scales[:, None] - x).abs() <= 1.0001 * allowed).all()


@pytest.mark.parametrize("kv_dtype", CODE_DTYPES)
def test_values_come_out_as_the_reference_keeps_them(native: CpuKernelSet, kv_dtype: str) -> None:
    """One token sees itself alone, so its value comes out as the cache has it: small ones, large ones, ties, zeros."""
    rng = np.random.default_rng(8)
    values = rng.standard_normal((60, DIM)).astype(np.float32) * 10.0 ** rng.integers(-9, 9, (60, 1))
    values[0], values[1, 1:], values[2] = 0, 0, np.arange(DIM) * 0.5
    values[3] *= 10.0 ** rng.integers(-6, 0, DIM)
    values[2, -1] = 127  # so that int8 meets ties
    graph = Graph()
    qkv = graph.given(np.concatenate([np.ones((60, 2 * DIM)), values], axis=1).astype(np.float32))
    out = graph.slot(DIM)
    graph.add(KvWrite(Span(qkv, DIM, DIM), Span(qkv, 2 * DIM, DIM), 0, 1, DIM))
    graph.add(PagedAttention(Span(qkv, 0, DIM), out, 0, 1, 1, DIM, DIM**-0.5))
    bounds = execution_of(64, seqs=60, kv_dtype=kv_dtype, num_blocks=NUM_BLOCKS)
    executable = bind(native, graph, graph.program(out, [KvShape(1, DIM, DIM)]), bounds)
    step = batch_step([[token] for token in range(60)], [0] * 60, [[block] for block in range(60)], 16)
    codes, scales = to_codes(torch.from_numpy(values.astype(np.float32)), CODE_DTYPES[kv_dtype])
    kept = (codes.float() * scales[:, None]).numpy()
    np.testing.assert_allclose(logits_of(executable, step), kept, rtol=2**-15)  # int8: a probability has 15 bits


@pytest.mark.parametrize("width", [128, 64, 40, 24])
def test_turning_twice_gives_the_numbers(width: int) -> None:
    x = torch.from_numpy(np.random.default_rng(9).standard_normal((7, 3, width)).astype(np.float32))
    torch.testing.assert_close(turned(turned(x)), x)
    torch.testing.assert_close((turned(x) * turned(x[:1])).sum(-1), (x * x[:1]).sum(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dim", [64, 40, 128])
def test_a_large_column_of_keys_leaves_the_others_their_precision(native: CpuKernelSet, dim: int) -> None:
    """Every key has a column that is 200 times larger than the others, which queries do not see. Without turning,
    outputs would be off by half of the largest."""
    rng, length = np.random.default_rng(10), 64
    q, k, v = (rng.standard_normal((length, dim)).astype(np.float32) for _ in range(3))
    k[:, 5] += 200
    q[:, 5] = 0
    graph = Graph()
    qkv = graph.given(np.concatenate([q, k, v], axis=1))
    out = graph.slot(dim)
    graph.add(KvWrite(Span(qkv, dim, dim), Span(qkv, 2 * dim, dim), 0, 1, dim))
    graph.add(PagedAttention(Span(qkv, 0, dim), out, 0, 1, 1, dim, 2 * dim**-0.5))
    executables = [
        bind(
            native,
            graph,
            graph.program(out, [KvShape(1, dim, dim)]),
            execution_of(length, kv_dtype=kv_dtype, num_blocks=NUM_BLOCKS),
        )
        for kv_dtype in ("f32", "int8")
    ]
    step = batch_step([list(range(length))], [0], tables(16, length), 16)
    exact, found = (logits_of(executable, step) for executable in executables)
    assert np.abs(found - exact).max() <= 0.3 * np.abs(exact).max()


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_prefill_chunks_and_decode(native: CpuKernelSet, reference: KernelSet, kv_dtype: str) -> None:
    bounds = execution_of(320, kv_dtype=kv_dtype, block_size=24, num_blocks=NUM_BLOCKS)
    case = (6, 2, 80, 24, 50, 10.0)
    expected, actual = make(reference, case, bounds), make(native, case, bounds)
    table = tables(24, 220, 60)
    for counts, cached in (((200, 33), (0, 0)), ((1, 17), (200, 33))):
        step = batch_step(tokens(*counts), cached, table, 24)
        want, got = logits_of(expected, step), logits_of(actual, step)
        assert np.abs(want - got).max() <= 1e-2 * np.abs(want).max()


@pytest.mark.parametrize("kv_dtype", ["bf16", *CODE_DTYPES])
def test_both_sets_hold_the_planned_bytes(native: CpuKernelSet, reference: KernelSet, kv_dtype: str) -> None:
    bounds = execution_of(64, kv_dtype=kv_dtype, block_size=16, num_blocks=NUM_BLOCKS)
    per_head = 64 * 2 if kv_dtype == "bf16" else 64 + 4
    for kernel_set in (native, reference):
        held = make(kernel_set, (4, 2, 64, 16, None, None), bounds).memory_bytes["kv_cache"]
        assert held == pytest.approx(NUM_BLOCKS * 16 * 2 * 2 * per_head, abs=4095)  # whole pages are mapped
