"""Caches of 8 bits, by torch and by Triton under its interpreter: numbers are those of the reference set."""

import numpy as np
import pytest

from appliance.kernels.gpu.kernel_set import GpuKernelSet
from appliance.kernels.interface import KernelSet
from appliance.kernels.reference.kv_codes import CODE_DTYPES
from appliance.program.caches import KvShape
from appliance.program.operators import KvWrite, PagedAttention
from appliance.program.slots import Span
from tests.kernels.harness import Graph, batch_step, bind, execution_of, logits_of
from tests.kernels.test_attention import NUM_BLOCKS, VOCABULARY, make, tables, tokens

CASE = (6, 2, 80, 16, 50, 10.0)


@pytest.mark.parametrize("with_triton", [False, True])
@pytest.mark.parametrize("kv_dtype", CODE_DTYPES)
def test_prefill_chunks_and_decode(reference: KernelSet, kv_dtype: str, with_triton: bool) -> None:
    bounds = execution_of(128, kv_dtype=kv_dtype, num_blocks=NUM_BLOCKS)
    expected, actual = make(reference, CASE, bounds), make(GpuKernelSet("torch", with_triton), CASE, bounds)
    table = tables(16, 60, 40)
    for counts, cached in (((50, 9), (0, 0)), ((1, 17), (50, 9))):
        step = batch_step(tokens(*counts), cached, table, 16)
        np.testing.assert_allclose(logits_of(actual, step), logits_of(expected, step), atol=2e-5)


@pytest.mark.parametrize("with_triton", [False, True])
def test_values_in_keys(reference: KernelSet, with_triton: bool) -> None:
    """Latent attention: one scale for a key and its columns that are the value."""
    heads, dim, value_dim = 3, 48, 32
    rng = np.random.default_rng(1)
    found = []
    for kernel_set in (reference, GpuKernelSet("torch", with_triton)):
        graph = Graph()
        qk = graph.given(rng.standard_normal((VOCABULARY, (heads + 1) * dim)).astype(np.float32))
        rng = np.random.default_rng(1)
        out = graph.slot(heads * value_dim)
        graph.add(KvWrite(Span(qk, heads * dim, dim), None, 0, 1, dim))
        attention = PagedAttention(Span(qk, 0, heads * dim), out, 0, heads, 1, dim, dim**-0.5, value_dim=value_dim,
                                   values_in_keys=True)  # fmt: skip
        graph.add(attention)
        program = graph.program(out, [KvShape(1, dim, value_dim, values_in_keys=True)])
        executable = bind(kernel_set, graph, program, execution_of(64, kv_dtype="fp8_e4m3", num_blocks=NUM_BLOCKS))
        table = tables(16, 30)
        first = logits_of(executable, batch_step(tokens(20), [0], table, 16))
        found.append((first, logits_of(executable, batch_step(tokens(1), [20], table, 16))))
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("kv_dtype", ["bf16", *CODE_DTYPES])
def test_the_planned_bytes_are_held(kv_dtype: str) -> None:
    bounds = execution_of(64, kv_dtype=kv_dtype, num_blocks=NUM_BLOCKS)
    per_head = 64 * 2 if kv_dtype == "bf16" else 64 + 4
    held = make(GpuKernelSet("torch"), (4, 2, 64, 16, None, None), bounds).memory_bytes["kv_cache"]
    assert held == NUM_BLOCKS * 16 * 2 * 2 * per_head
