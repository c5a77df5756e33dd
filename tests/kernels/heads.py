"""Programs with only an output head and a screen of its logits."""

from dataclasses import dataclass, replace

import numpy as np

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.interface import Executable
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.program.operators import GatherRows, Linear, RmsNorm, SoftCap, StepProgram
from appliance.program.slots import Extent
from tests.kernels.harness import (
    Graph,
    execution_of,
    logits_of,
    plain_step,
    random_weight,
    whole,
)

HIDDEN = 224
VOCABULARY = 1541  # whole panels of sixteen rows, and five rows more; whole words of 32 panels, and one panel more
DENSE = [Layout.F32, Layout.F16, Layout.BF16]


@dataclass(frozen=True)
class Head:
    """x [T, HIDDEN], normed where asked, times a head."""

    executable: Executable
    rows: int

    def logits(self, largest: int | list[int] | None = None) -> np.ndarray:
        """Returns logits [T, V]; `largest` is the number of exact ones, for all rows or for each; None: all logits."""
        asked = None if largest is None else np.full(self.rows, largest, np.int32)
        return logits_of(self.executable, replace(plain_step(self.rows), num_largest=asked))


def head_of(
    native: CpuKernelSet,
    x: np.ndarray,
    weight: CanonicalWeight,
    *,
    norm: bool = False,
    cap: float | None = None,
    threads: int = 2,
    quantize: bool = True,
) -> Head:
    graph = Graph()
    given, gathered = graph.given(x), graph.slot(x.shape[1], Extent.SAMPLED)
    graph.add(GatherRows(given, gathered))
    if norm:
        normed = graph.slot(x.shape[1], Extent.SAMPLED)
        graph.add(RmsNorm(gathered, graph.vector(np.linspace(0.5, 3, x.shape[1], dtype=np.float32)), normed, 1e-6))
        gathered = normed
    logits = graph.slot(weight.out_features, Extent.SAMPLED)
    graph.add(Linear(whole(gathered), graph.weight(weight), whole(logits)))
    if cap is not None:
        graph.add(SoftCap(logits, cap))
    program = StepProgram(tuple(graph.operators), tuple(graph.slots), logits)
    bounds = execution_of(num_threads=threads, quantize=quantize, screen_logits=True)
    return Head(native.bind(program, graph.weights, bounds), len(x))


def random_input(rows: int, hidden: int = HIDDEN) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, hidden)).astype(np.float32)


def random_head(layout: Layout = Layout.BF16, rows: int = VOCABULARY, hidden: int = HIDDEN) -> CanonicalWeight:
    return random_weight(np.random.default_rng(1), layout, rows, hidden)


def values_of(weight: CanonicalWeight) -> np.ndarray:
    """f32 [N, K] of bf16, or of int8 in groups."""
    codes = weight.data.reshape(weight.out_features, -1)
    if weight.scale is None:
        return (codes.astype(np.uint32) << 16).view(np.float32)
    parts = (0 if part is None else part.repeat(weight.group_size, 1) for part in (weight.scale, weight.offset))
    scale, offset = parts
    return (codes * scale + offset).astype(np.float32)


def check(head: Head, count: int = 1) -> np.ndarray:
    """Checks that the largest of the screened logits are exact, and the others smaller. Returns where they differ."""
    exact, screened = head.logits(), head.logits(count)
    least = np.sort(exact, 1)[:, -count:][:, :1]
    is_wanted = exact >= least
    assert np.array_equal(screened[is_wanted], exact[is_wanted])
    assert (screened < least)[~is_wanted].all()
    return screened != exact
