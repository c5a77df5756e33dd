"""Experts against the reference set: dense and packed, with and without gates, clamps, biases, weighed inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.triton.experts import (
    ExpertMatrices,
    ExpertOptions,
    ExpertWorkspace,
    mix,
    mixture,
    tile_rows_of,
)
from appliance.kernels.gpu.triton.experts_order import NO_EXPERT, NO_PAIR, num_expert_tiles, order_by_expert
from appliance.kernels.gpu.triton.packing import pack
from appliance.kernels.layout import Layout
from appliance.kernels.reference.weights import dequantize
from appliance.program.routing import Experts
from tests.kernels.harness import random_coded, random_quantized
from tests.kernels.triton.oracle import OracleStep, assert_near, random, rest_of, run, slot, span_of

TOKENS, CHOSEN, NUM_EXPERTS, HIDDEN, WIDTH = 7, 2, 5, 64, 96
OPTIONS = {
    "gated": ExpertOptions(WIDTH, "silu"),
    "clamped": ExpertOptions(WIDTH, "silu", limit=1.0, alpha=1.7, up_offset=1.0),
    "relu2 without gates": ExpertOptions(WIDTH, "relu2", is_gated=False),
    "weighed inputs": ExpertOptions(WIDTH, "gelu_tanh", weigh_input=True),
}


def chosen() -> tuple[torch.Tensor, torch.Tensor]:
    """Experts 1 and 3 get most tokens, expert 2 none."""
    experts = torch.tensor([[1, 3], [0, 1], [1, 4], [3, 4], [1, 3], [1, 3], [0, 3]], dtype=torch.int32)
    return experts, random(5, TOKENS, CHOSEN).abs()


def expected(x: torch.Tensor, options: ExpertOptions, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    experts, factors = chosen()
    slots = [slot(0, HIDDEN), slot(1, CHOSEN), slot(2, CHOSEN), slot(3, HIDDEN)]
    named = {name: name if name in weights else None for name in ("gate", "gate_bias", "up_bias", "down_bias")}
    op = Experts(
        slots[0], slots[1], slots[2], "up", "down", slots[3], NUM_EXPERTS, WIDTH, options.kind, options.is_gated,
        limit=options.limit, alpha=options.alpha, up_offset=options.up_offset, weigh_input=options.weigh_input, **named,
    )  # fmt: skip
    step = OracleStep({0: x.float(), 1: experts, 2: factors, 3: torch.empty(TOKENS, HIDDEN)}, weights)
    run(op, step)
    return step.buffers[3]


def mixed(x: torch.Tensor, options: ExpertOptions, matrices: ExpertMatrices) -> torch.Tensor:
    experts, factors = chosen()
    space = ExpertWorkspace.allocate(TOKENS, CHOSEN, matrices, options, HIDDEN, x.dtype, "cpu")
    for floats in (space.opened, space.inner, space.result):
        floats.fill_(float("nan"))
    out = span_of(torch.zeros_like(x))
    mixture(span_of(x), experts, factors, matrices, options, out, space)
    assert rest_of(out).isnan().all()
    return out


@pytest.mark.parametrize("name", OPTIONS)
def test_dense_experts(name: str) -> None:
    options, x = OPTIONS[name], random(1, TOKENS, HIDDEN)
    opened = WIDTH * (2 if options.is_gated else 1)
    weights = {
        "up": random(2, NUM_EXPERTS * opened, HIDDEN) / 8,
        "down": random(3, NUM_EXPERTS * HIDDEN, WIDTH) / 10,
        "up_bias": random(4, NUM_EXPERTS * opened),
        "down_bias": random(6, NUM_EXPERTS * HIDDEN),
    }
    assert_near(mixed(x, options, ExpertMatrices(NUM_EXPERTS, **weights)), expected(x, options, weights), torch.float32)


def test_gates_of_their_own_in_half_precision() -> None:
    options, x = OPTIONS["gated"], random(1, TOKENS, HIDDEN, dtype=torch.float16)
    shapes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    weights = {
        name: (random(seed, NUM_EXPERTS * rows, columns) / 10).half()
        for seed, (name, (rows, columns)) in enumerate(shapes.items())
    }
    want = expected(x, options, {name: weight.float() for name, weight in weights.items()})
    assert_near(mixed(x, options, ExpertMatrices(NUM_EXPERTS, **weights)), want, torch.float16)


@pytest.mark.parametrize("layout", [Layout.E2M1, Layout.INT4])
def test_packed_experts(layout: Layout) -> None:
    rng, options, x = np.random.default_rng(1), replace(OPTIONS["clamped"], weigh_input=True), random(1, TOKENS, HIDDEN)
    sizes = {"up": (NUM_EXPERTS * 2 * WIDTH, HIDDEN), "down": (NUM_EXPERTS * HIDDEN, WIDTH)}
    canonical = {
        name: random_coded(rng, layout, *size, 32, np.uint8)
        if layout is Layout.E2M1
        else random_quantized(rng, layout, *size, 32, "free")
        for name, size in sizes.items()
    }
    bias = random(4, NUM_EXPERTS * 2 * WIDTH)
    packed = {name: pack(weight) for name, weight in canonical.items()}
    got = mixed(x, options, ExpertMatrices(NUM_EXPERTS, **packed, up_bias=bias))
    weights = {name: dequantize(weight) for name, weight in canonical.items()}
    assert_near(got, expected(x, options, {**weights, "up_bias": bias}), torch.float32)


def test_pairs_are_ordered_by_their_expert() -> None:
    experts, rows = chosen()[0], 4
    tiles = num_expert_tiles(experts.numel(), NUM_EXPERTS, rows)
    order, places, tile_experts, counts = (
        torch.full((size,), 99, dtype=torch.int32) for size in (tiles * rows, experts.numel(), tiles, NUM_EXPERTS)
    )
    order_by_expert(experts, order, places, tile_experts, counts, rows)
    assert counts.tolist() == [2, 5, 0, 5, 2]
    assert tile_experts.tolist() == [0, 1, 1, 3, 3, 4, *[NO_EXPERT] * (tiles - 6)]
    assert order[:8].tolist() == [2, 12, NO_PAIR, NO_PAIR, 0, 3, 4, 8]
    assert (order[24:] == NO_PAIR).all()
    assert order[places.long()].tolist() == list(range(experts.numel()))


def test_rows_of_a_tile_follow_the_load() -> None:
    assert [tile_rows_of(pairs, 128) for pairs in (8, 4096, 65536)] == [16, 32, 64]


def test_a_weight_of_other_experts_is_refused() -> None:
    matrices = ExpertMatrices(NUM_EXPERTS, torch.empty(7, HIDDEN), torch.empty(NUM_EXPERTS * HIDDEN, WIDTH))
    with pytest.raises(ValueError, match="5 experts of 192 rows are not the 7 rows of the weight"):
        mixed(random(1, TOKENS, HIDDEN), OPTIONS["gated"], matrices)


@pytest.mark.parametrize("name", ["gated", "weighed inputs"])
def test_ranks_have_whole_experts(name: str) -> None:
    """What the ranks' own experts give, added as the bits that it is, is what a set gives that has all of them."""
    options, x, (experts, factors) = OPTIONS[name], random(1, TOKENS, HIDDEN), chosen()
    weights = {
        "up": random(2, NUM_EXPERTS * 2 * WIDTH, HIDDEN) / 8,
        "down": random(3, NUM_EXPERTS * HIDDEN, WIDTH) / 10,
    }
    outputs = torch.zeros(TOKENS, CHOSEN * HIDDEN)
    for first, last in ((0, 2), (2, 5)):
        own = {each: matrix.view(NUM_EXPERTS, -1, matrix.shape[1])[first:last] for each, matrix in weights.items()}
        matrices = ExpertMatrices(last - first, **{each: part.flatten(0, 1) for each, part in own.items()})
        space = ExpertWorkspace.allocate(TOKENS, CHOSEN, matrices, options, HIDDEN, x.dtype, "cpu")
        found = torch.full_like(outputs, float("nan"))
        mixture(span_of(x), experts, factors, matrices, options, found, space, first_own=first)
        assert (found.view(TOKENS, CHOSEN, HIDDEN)[(experts < first) | (experts >= last)] == 0).all()
        outputs.view(torch.int32).add_(found.view(torch.int32))
    out = span_of(torch.zeros_like(x))
    mix(outputs, factors, out, weighs=not options.weigh_input)
    assert torch.equal(out, mixed(x, options, ExpertMatrices(NUM_EXPERTS, **weights)))
