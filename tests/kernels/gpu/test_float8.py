"""FP8 weights times activations that are rounded to FP8, by torch and by Triton: the same for few rows and for many."""

import dataclasses

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.float8 import to_float8
from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.reference.weights import dequantize
from appliance.program.operators import Linear, RmsNorm
from tests.kernels.harness import Graph, batch_step, execution_of, logits_of, whole

COLUMNS = 80


def float8_weight(rng: np.random.Generator, features: int) -> CanonicalWeight:
    data = rng.integers(0, 127, (features, COLUMNS), dtype=np.uint8) | rng.choice([0, 128], (features, COLUMNS))
    scale = rng.uniform(0.001, 0.01, (features, 1)).astype(np.float32)
    return CanonicalWeight(Layout.F8, features, COLUMNS, data.astype(np.uint8), scale, None, COLUMNS)


@pytest.mark.parametrize("with_triton", [False, True])
@pytest.mark.parametrize("features", [48, 20])  # the library wants multiples of 16
def test_products(features: int, with_triton: bool) -> None:
    rng, graph = np.random.default_rng(4), Graph()
    inputs = rng.standard_normal((64, COLUMNS)).astype(np.float32) * 10.0 ** rng.integers(-6, 6, (64, 1))
    weight, bias = float8_weight(rng, features), rng.standard_normal(features).astype(np.float32)
    x, out = graph.given(inputs), graph.slot(features)
    graph.add(Linear(whole(x), graph.weight(weight), whole(out), graph.vector(bias)))
    graph.add(Linear(whole(x), graph.weight(weight), whole(out), accumulate=True))
    kernel_set = GpuKernelSet("torch", with_triton)
    executable = kernel_set.bind(graph.program(out), graph.weights, execution_of(64, quantize=True))
    assert isinstance(executable, GpuExecutable)
    codes, scales = to_float8(torch.from_numpy(inputs))
    rounded = (codes.float() * scales).numpy()
    assert np.abs(rounded - inputs).max() > 1e-3 * np.abs(inputs).max(), "rounding shows"
    want = 2 * rounded @ dequantize(weight).numpy().T + bias
    for count in (1, 3, 50):
        got = logits_of(executable, batch_step([list(range(count))], [0], [[0, 1, 2, 3]], 16))
        np.testing.assert_allclose(got, want[:count], rtol=1e-5, atol=1e-5 * np.abs(want[:count]).max())


def test_norms_before_products() -> None:
    """By torch, and by the kernel of the norm, which rounds its result: the same."""
    rng, found = np.random.default_rng(6), []
    inputs, weight = rng.standard_normal((64, COLUMNS)).astype(np.float32), float8_weight(rng, 48)
    for with_triton in (False, True):
        graph = Graph()
        x, normed, out = graph.given(inputs), graph.slot(COLUMNS), graph.slot(48)
        graph.add(RmsNorm(x, None, normed, 1e-6), Linear(whole(normed), graph.weight(weight), whole(out)))
        kernel_set = GpuKernelSet("torch", with_triton)
        executable = kernel_set.bind(graph.program(out), graph.weights, execution_of(64, quantize=True))
        found.append([logits_of(executable, batch_step([list(range(n))], [0], [[0, 1, 2, 3]], 16)) for n in (2, 40)])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_rounding_is_off_unless_it_is_planned() -> None:
    rng, graph = np.random.default_rng(4), Graph()
    inputs = rng.standard_normal((64, COLUMNS)).astype(np.float32)
    weight = float8_weight(rng, 32)
    x, out = graph.given(inputs), graph.slot(32)
    graph.add(Linear(whole(x), graph.weight(weight), whole(out)))
    executable = GpuKernelSet("torch").bind(graph.program(out), graph.weights, execution_of(64))
    got = logits_of(executable, batch_step([[1, 2]], [0], [[0]], 16))
    np.testing.assert_allclose(got, inputs[1:3] @ dequantize(weight).numpy().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_triton", [False, True])
def test_rows_can_round_alike_in_every_batch(with_triton: bool) -> None:
    rng, graph = np.random.default_rng(5), Graph()
    x, out = graph.given(rng.standard_normal((64, COLUMNS)).astype(np.float32)), graph.slot(32)
    graph.add(Linear(whole(x), graph.weight(float8_weight(rng, 32)), whole(out)))
    execution = execution_of(64, quantize=True)
    execution = dataclasses.replace(execution, numerics=dataclasses.replace(execution.numerics, batch_invariant=True))
    executable = GpuKernelSet("torch", with_triton).bind(graph.program(out), graph.weights, execution)
    alone, among = (
        logits_of(executable, batch_step([tokens], [0], [[0, 1, 2, 3]], 16)) for tokens in ([5], [5, *range(40)])
    )
    np.testing.assert_array_equal(alone[0], among[0])
