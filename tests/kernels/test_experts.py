"""Routing and experts: every layout and level against the reference, and rows that do not depend on each other."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.errors import BindError
from appliance.kernels.interface import KernelSet
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.program.routing import ChooseExperts, Experts, GatedAdd
from appliance.program.slots import Slot
from tests.kernels.harness import (
    BITS,
    Graph,
    dense,
    execution_of,
    plain_step,
    random_sub_groups,
    random_weight,
    run_once,
)
from tests.kernels.test_linear import BF16_INPUTS, EXACT, assert_close

NUM_EXPERTS, NUM_CHOSEN = 8, 3
HIDDEN, WIDTH = 96, 64
ROUNDED_TWICE = 3e-3  # what goes to `down` is rounded to 8 bits: a value between two of them may become either


@dataclass
class Case:
    """A mixture of random experts; `logits` decide which are chosen."""

    layout: Layout = Layout.F32
    rows: int = 5
    hidden: int = HIDDEN
    width: int = WIDTH
    quantize: bool = False
    is_gated: bool = True
    has_own_gate: bool = False
    biases: bool = False
    sub_groups: int = 0
    down_layout: Layout | None = None
    logits: np.ndarray | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)  # of what `weights` answers

    def weight(self, rng: np.random.Generator, layout: Layout, rows: int, columns: int) -> CanonicalWeight:
        if self.sub_groups:
            return random_sub_groups(rng, layout, rows, columns, self.sub_groups)
        return random_weight(rng, layout, rows, columns)

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.rows)
        x = rng.standard_normal((self.rows, self.hidden)).astype(np.float32)
        logits = rng.standard_normal((self.rows, NUM_EXPERTS)).astype(np.float32)
        return x, logits if self.logits is None else self.logits.astype(np.float32)

    def build(self, graph: Graph, keep: slice = slice(None)) -> Slot:
        x, logits = (values[keep] for values in self.inputs())
        source = graph.given(x)
        experts, factors = routed(graph, graph.given(logits))
        out = graph.slot(self.hidden)
        graph.add(Experts(x=source, experts=experts, factors=factors, out=out, **self.weights(graph), **self.fields))
        return out

    def weights(self, graph: Graph) -> dict[str, Any]:
        rng = np.random.default_rng(7)
        inner = NUM_EXPERTS * self.width
        joined = 2 * inner if self.is_gated and not self.has_own_gate else inner
        names: dict[str, Any] = {
            "up": graph.weight(self.weight(rng, self.layout, joined, self.hidden)),
            "down": graph.weight(
                self.weight(rng, self.down_layout or self.layout, NUM_EXPERTS * self.hidden, self.width)
            ),
            "num_experts": NUM_EXPERTS,
            "width": self.width,
            "kind": "silu" if self.is_gated else "relu2",
            "is_gated": self.is_gated,
        }
        if self.has_own_gate:
            names["gate"] = graph.weight(self.weight(rng, Layout.F16, inner, self.hidden))
        if self.biases:
            sizes = {"up_bias": joined, "down_bias": NUM_EXPERTS * self.hidden}
            sizes |= {"gate_bias": inner} if self.has_own_gate else {}
            names |= {name: graph.vector(rng.standard_normal(size)) for name, size in sizes.items()}
        return names | self.changes

    def run(self, kernel_set: KernelSet, keep: slice = slice(None)) -> np.ndarray:
        rows = len(range(self.rows)[keep])
        limits = execution_of(rows, quantize=self.quantize)
        return run_once(kernel_set, lambda graph: self.build(graph, keep), plain_step(rows), limits)


def routed(graph: Graph, logits: Slot, num_chosen: int = NUM_CHOSEN, **fields: Any) -> tuple[Slot, Slot]:
    experts, factors = graph.slot(num_chosen, dtype="int32"), graph.slot(num_chosen)
    graph.add(ChooseExperts(logits, experts, factors, **({"scoring": "softmax"} | fields)))
    return experts, factors


def check(native: CpuKernelSet, reference: KernelSet, case: Case) -> None:
    actual, expected = case.run(native), case.run(reference)
    assert np.abs(expected).max() > 0.01
    is_bf16 = Layout.BF16 in (case.layout, case.down_layout)
    assert_close(actual, expected, BF16_INPUTS if is_bf16 else ROUNDED_TWICE if case.quantize else EXACT)


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 150])  # 150: groups of experts in turn, and tall tiles
@pytest.mark.parametrize("layout", list(Layout))
def test_every_layout(native: CpuKernelSet, reference: KernelSet, layout: Layout, rows: int) -> None:
    check(native, reference, Case(layout, rows, quantize=layout in BITS))


@pytest.mark.parametrize("layout", [Layout.INT8, Layout.INT4])
def test_codes_that_meet_floats(native: CpuKernelSet, reference: KernelSet, layout: Layout) -> None:
    check(native, reference, Case(layout, 9))


@pytest.mark.parametrize(("layout", "sub_groups"), [(Layout.INT4, 16), (Layout.INT5, 32), (Layout.INT6, 16)])
@pytest.mark.parametrize("rows", [1, 40])
def test_sub_groups(native: CpuKernelSet, reference: KernelSet, layout: Layout, sub_groups: int, rows: int) -> None:
    case = Case(layout, rows, hidden=256, width=256, quantize=True, sub_groups=sub_groups)
    check(native, reference, case)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_gated": False},
        {"is_gated": False, "biases": True},
        {"biases": True},
        {"has_own_gate": True},
        {"has_own_gate": True, "biases": True, "layout": Layout.INT4, "quantize": True},
        {"down_layout": Layout.INT8, "layout": Layout.INT4, "quantize": True},
        {"biases": True, "fields": {"limit": 0.7, "alpha": 1.702, "up_offset": 1.0}},
        {"fields": {"limit": 0.5}},
        {"changes": {"kind": "gelu"}},
        {"fields": {"weigh_input": True}},
        {"fields": {"weigh_input": True}, "layout": Layout.INT8, "quantize": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 12])
def test_kinds_of_experts(native: CpuKernelSet, reference: KernelSet, changes: dict[str, Any], rows: int) -> None:
    check(native, reference, Case(rows=rows, **changes))


def test_all_rows_choose_the_same_experts(native: CpuKernelSet, reference: KernelSet) -> None:
    """So that some experts have every row, and the others none."""
    logits = np.zeros((300, NUM_EXPERTS))
    logits[:, 2:5] = [[3.0, 2.0, 1.0]]
    check(native, reference, Case(Layout.INT4, 300, quantize=True, logits=logits))


def test_equal_logits_choose_the_lower_index(native: CpuKernelSet, reference: KernelSet) -> None:
    check(native, reference, Case(rows=4, logits=np.zeros((4, NUM_EXPERTS))))


@pytest.mark.parametrize("layout", list(Layout))
def test_a_row_rounds_alike_in_every_batch(native: CpuKernelSet, layout: Layout) -> None:
    case = Case(layout, 150, quantize=layout in BITS)
    together = case.run(native)
    for keep in (slice(0, 1), slice(17, 18), slice(40, 47), slice(100, 133)):
        np.testing.assert_array_equal(case.run(native, keep), together[keep])


ROUTES: list[dict[str, Any]] = [
    {"scoring": "softmax"},
    {"scoring": "softmax", "renormalize": True, "scale": 2.5},
    {"scoring": "sigmoid"},
    {"scoring": "sigmoid", "renormalize": True},
    {"scoring": "softmax_of_chosen"},
    {"scoring": "sigmoid", "num_groups": 4, "num_chosen_groups": 2, "group_scoring": "top2"},
    {"scoring": "softmax", "num_groups": 4, "num_chosen_groups": 2, "group_scoring": "max"},
    {"scoring": "sparsemixer", "jitter": 0.2},
]


def route_both(kernel_set: KernelSet, logits: np.ndarray, fields: dict[str, Any], correction: np.ndarray | None) -> Any:
    """(experts, factors) of each row."""

    def build(graph: Graph, which: int) -> Slot:
        name = None if correction is None else graph.vector(correction)
        return routed(graph, graph.given(logits), correction=name, **fields)[which]

    step, limits = plain_step(len(logits)), execution_of(len(logits))
    experts, factors = (run_once(kernel_set, partial(build, which=which), step, limits) for which in (0, 1))
    is_native = kernel_set.name != "reference"  # the reference makes floats of what it gathers
    return experts.view(np.int32) if is_native else experts.astype(np.int32), factors


@pytest.mark.parametrize("fields", ROUTES, ids=str)
@pytest.mark.parametrize("is_corrected", [False, True])
@pytest.mark.parametrize("num_experts", [8, 60])
def test_routes(
    native: CpuKernelSet, reference: KernelSet, fields: dict[str, Any], is_corrected: bool, num_experts: int
) -> None:
    if is_corrected and fields["scoring"] == "sparsemixer":
        with pytest.raises(BindError, match="sparsemixer has no groups"):
            route_both(native, np.zeros((1, num_experts), np.float32), fields, np.ones(num_experts, np.float32))
        return
    rng = np.random.default_rng(num_experts)
    logits = rng.standard_normal((40, num_experts)).astype(np.float32) * 2
    logits[7] = 0.5  # all alike
    correction = rng.standard_normal(num_experts).astype(np.float32) if is_corrected else None
    experts, factors = route_both(native, logits, fields, correction)
    expected_experts, expected_factors = route_both(reference, logits, fields, correction)
    np.testing.assert_array_equal(experts, expected_experts)
    assert (np.diff(experts) > 0).all()
    np.testing.assert_allclose(factors, expected_factors, rtol=1e-5, atol=1e-7)


def test_a_row_of_what_is_no_number_chooses_experts_that_are_there(native: CpuKernelSet) -> None:
    logits = np.full((2, NUM_EXPERTS), np.nan)
    logits[1] = np.arange(NUM_EXPERTS)
    case = Case(rows=2, logits=logits)
    out = case.run(native)
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1:], case.run(native, slice(1, 2)))


def test_gated_add(native: CpuKernelSet, reference: KernelSet) -> None:
    rng = np.random.default_rng(0)
    x, out, gate = (rng.standard_normal((5, width)).astype(np.float32) for width in (33, 33, 1))

    def build(graph: Graph) -> Slot:
        slots = [graph.given(values) for values in (x, gate, out)]
        graph.add(GatedAdd(*slots))
        return slots[2]

    actual, expected = (run_once(each, build, plain_step(5), execution_of(5)) for each in (native, reference))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 40, "is_gated": False}, "no multiple of 16"),
        ({"changes": {"num_experts": 7}}, "other rows than its experts"),
        ({"changes": {"alpha": 2.0, "kind": "gelu"}}, "bad limit or alpha"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(native: CpuKernelSet, changes: dict[str, Any], message: str) -> None:
    case = Case(**changes)
    with pytest.raises(BindError, match=message):
        case.run(native)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_groups": 3}, "bad groups"),
        ({"num_groups": 4, "num_chosen_groups": 1}, "fewer experts than are to be chosen"),
    ],
)
def test_routes_that_cannot_be_are_refused(native: CpuKernelSet, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        route_both(native, np.zeros((2, NUM_EXPERTS), np.float32), fields, None)


def test_dense_experts_are_the_sum_of_their_linears(reference: KernelSet) -> None:
    """The formula itself, in numpy: softmax over all, three chosen, in double precision."""
    case = Case(rows=3)
    x, logits = (values.astype(np.float64) for values in case.inputs())
    graph = Graph()
    names = case.weights(graph)
    up, down = (graph.weights[names[name]].data.astype(np.float64) for name in ("up", "down"))
    expected = np.zeros_like(x)
    for row in range(3):
        scores = np.exp(logits[row]) / np.exp(logits[row]).sum()
        for expert in np.argsort(-scores)[:NUM_CHOSEN]:
            both = up.reshape(NUM_EXPERTS, 2 * WIDTH, HIDDEN)[expert] @ x[row]
            inner = both[:WIDTH] / (1 + np.exp(-both[:WIDTH])) * both[WIDTH:]
            expected[row] += scores[expert] * (down.reshape(NUM_EXPERTS, HIDDEN, WIDTH)[expert] @ inner)
    np.testing.assert_allclose(case.run(reference), expected, rtol=1e-4, atol=1e-5)
    assert dense(up).layout is Layout.F32
