"""The operators beside Linear and attention, over odd widths."""

from collections.abc import Callable

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import KernelSet
from appliance.program import operators as ops
from appliance.program.record import ActivationKind, LearnedActivationKind
from appliance.program.slots import Slot, Span
from tests.kernels.harness import Graph, dense, execution_of, logits_of, plain_step, run_once, whole

ROWS = 7
WIDTHS = [8, 37, 64, 300]


def values(width: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((ROWS, width))).astype(np.float32)


def vector(width: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal(width).astype(np.float32)


def rms_norm(graph: Graph, width: int) -> Slot:
    out = graph.slot(width)
    graph.add(ops.RmsNorm(graph.given(values(width)), graph.vector(vector(width)), out, 1e-5))
    return out


def rms_norm_into_residual(graph: Graph, width: int) -> Slot:
    x, residual, out = graph.given(values(width)), graph.given(values(width, 1)), graph.slot(width)
    graph.add(ops.RmsNorm(x, graph.vector(vector(width)), out, 1e-6, residual), ops.Add(out, residual))
    return residual


def layer_norm(graph: Graph, width: int) -> Slot:
    x, residual, out = graph.given(values(width)), graph.given(values(width, 1)), graph.slot(width)
    weight, bias = graph.vector(vector(width)), graph.vector(vector(width)[::-1].copy())
    graph.add(ops.LayerNorm(x, weight, bias, out, 1e-5, residual), ops.Add(residual, out))
    return out


def layer_norm_without_bias(graph: Graph, width: int) -> Slot:
    out = graph.slot(width)
    graph.add(ops.LayerNorm(graph.given(values(width)), graph.vector(vector(width)), None, out, 1e-5))
    return out


def head_norm(graph: Graph, width: int) -> Slot:
    x = graph.given(values(3 * width + 5))
    graph.add(ops.HeadNorm(Span(x, 5, 2 * width), graph.vector(vector(width)), 2, width, 1e-6))
    return x


def rms_norm_without_weight_of_a_scaled_sum(graph: Graph, width: int) -> Slot:
    x, residual, out = graph.given(values(width)), graph.given(values(width, 1)), graph.slot(width)
    graph.add(ops.RmsNorm(x, None, out, 1e-6, residual, scale=0.3), ops.Add(out, residual))
    return residual


def layer_norm_without_weight(graph: Graph, width: int) -> Slot:
    out = graph.slot(width)
    graph.add(ops.LayerNorm(graph.given(values(width)), None, None, out, 1e-5))
    return out


def head_norm_by_head(graph: Graph, width: int) -> Slot:
    x = graph.given(values(3 * width + 5))
    weight, bias = graph.vector(vector(2 * width)), graph.vector(vector(2 * width)[::-1].copy())
    graph.add(ops.HeadNorm(Span(x, 5, 2 * width), weight, 2, width, 1e-6, "layer", bias, by_head=True))
    return x


def head_norm_without_weight(graph: Graph, width: int) -> Slot:
    x = graph.given(values(3 * width + 5))
    graph.add(ops.HeadNorm(Span(x, 5, 2 * width), None, 2, width, 1e-6))
    return x


def gated(graph: Graph, width: int) -> Slot:
    x, out = graph.given(values(2 * width)), graph.slot(width)
    graph.add(ops.GatedActivation(Span(x, 0, width), Span(x, width, width), out, "silu"))
    return out


def product(graph: Graph, width: int) -> Slot:
    x, out = graph.given(values(2 * width)), graph.slot(width)
    graph.add(ops.GatedActivation(Span(x, 0, width), Span(x, width, width), out, None))
    return out


def scale(graph: Graph, width: int) -> Slot:
    x = graph.given(values(2 * width))
    graph.add(ops.Scale(Span(x, width, width), 0.3))
    return x


def xielu(graph: Graph, width: int) -> Slot:
    x, out = graph.given(4 * values(width)), graph.slot(width)
    parameters = graph.vector(np.array([0.3, -0.4, 0.5, -1e-6], np.float32))
    graph.add(ops.Activation(x, out, "xielu", parameters))
    return out


def copy(graph: Graph, width: int) -> Slot:
    x, out = graph.given(values(2 * width)), graph.given(np.zeros((ROWS, width + 2), np.float32))
    graph.add(ops.Copy(Span(x, width, width), Span(out, 1, width)))
    return out


def soft_cap(graph: Graph, width: int) -> Slot:
    x = graph.given(20 * values(width))
    graph.add(ops.SoftCap(x, 30.0))
    return x


BUILDERS = [
    rms_norm,
    rms_norm_into_residual,
    layer_norm,
    layer_norm_without_bias,
    head_norm,
    rms_norm_without_weight_of_a_scaled_sum,
    layer_norm_without_weight,
    head_norm_by_head,
    head_norm_without_weight,
    gated,
    product,
    scale,
    soft_cap,
    xielu,
    copy,
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("build", BUILDERS, ids=lambda f: f.__name__)
def test_operator(native: CpuKernelSet, reference: KernelSet, build: Callable[[Graph, int], Slot], width: int) -> None:
    want, got = (
        run_once(s, lambda graph: build(graph, width), plain_step(ROWS), execution_of()) for s in (reference, native)
    )
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"])
def test_activation(native: CpuKernelSet, reference: KernelSet, kind: ActivationKind) -> None:
    x = np.linspace(-20, 20, 7 * 301, dtype=np.float32).reshape(7, 301)
    x[0, :4] = (-100, 100, 0, -0.0)

    def build(graph: Graph) -> Slot:
        out = graph.slot(301)
        graph.add(ops.Activation(graph.given(x), out, kind))
        return out

    want, got = (run_once(s, build, plain_step(7), execution_of()) for s in (reference, native))
    np.testing.assert_allclose(got, want, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "has_parameters"), [("xielu", False), ("silu", True)])
def test_parameters_belong_to_the_learned_activation(
    native: CpuKernelSet, kind: ActivationKind | LearnedActivationKind, has_parameters: bool
) -> None:
    graph = Graph()
    parameters = graph.vector(np.ones(4, np.float32)) if has_parameters else None
    x, out = graph.given(values(8)), graph.slot(8)
    graph.add(ops.Activation(x, out, kind, parameters))
    with pytest.raises(BindError, match="parameters are missing"):
        native.bind(graph.program(out), graph.weights, execution_of())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (20, 20), (80, 32)])
def test_rope(native: CpuKernelSet, reference: KernelSet, head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    table = np.random.default_rng(1).uniform(-1, 1, (1024, rotary_dim)).astype(np.float32)

    def build(graph: Graph) -> Slot:
        x = graph.given(values(3 * head_dim + 4))
        name = graph.weight(dense(table))
        graph.add(ops.Rope(Span(x, 4, 3 * head_dim), name, 3, head_dim, rotary_dim, interleaved))
        return x

    step = plain_step(ROWS, [5, 0, 1023, 7, 7, 300, 2])
    want, got = (run_once(s, build, step, execution_of()) for s in (reference, native))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_only_sampled_rows_reach_the_logits(native: CpuKernelSet) -> None:
    x = values(24)
    graph = Graph()
    source = graph.given(x)
    step = plain_step(ROWS)
    step.sampled_rows = np.array([6, 2], np.int32)
    executable = native.bind(graph.program(source), graph.weights, execution_of())
    np.testing.assert_array_equal(logits_of(executable, step), x[[6, 2]])


def test_large_steps_are_shared_among_threads(native: CpuKernelSet, reference: KernelSet) -> None:
    x = np.random.default_rng(2).standard_normal((300, 512)).astype(np.float32)

    def build(graph: Graph) -> Slot:
        source, out, total = graph.given(x), graph.slot(512), graph.slot(512)
        weight = graph.weight(dense(np.random.default_rng(3).standard_normal((512, 512)).astype(np.float32) / 20))
        graph.add(ops.RmsNorm(source, graph.vector(vector(512)), out, 1e-6))
        graph.add(ops.Linear(whole(out), weight, whole(total)), ops.SoftCap(total, 5.0))
        return total

    for num_threads in (1, 2, 4):
        want, got = (
            run_once(s, build, plain_step(300), execution_of(300, num_threads=num_threads)) for s in (reference, native)
        )
        np.testing.assert_allclose(got, want, atol=2e-4)
