"""Packed weights against the reference's dequantization: every layout, odd sizes, rows of it, products."""

import zlib

import numpy as np
import pytest
import torch

from appliance.kernels.gpu.triton.linear import LinearTile
from appliance.kernels.gpu.triton.packing import PackingError, pack
from appliance.kernels.gpu.triton.quantized import choose_quantized, dequantize, quantized_gemv, quantized_rows
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.reference import weights as reference
from tests.kernels.harness import dense, random_coded, random_quantized, random_sub_groups
from tests.kernels.triton.oracle import assert_near, random, rest_of, span_of

# layout, group size, offset, sub-group size, type of the scales
CASES: dict[str, tuple[Layout, int, str, int, type]] = {
    "int8 by row": (Layout.INT8, 768, "none", 0, np.float32),
    "int8 in groups": (Layout.INT8, 128, "free", 0, np.float16),
    "int4 of 128": (Layout.INT4, 128, "symmetric", 0, np.float16),
    "int4 of 32": (Layout.INT4, 32, "free", 0, np.float16),
    "int4 of 96": (Layout.INT4, 96, "none", 0, np.float32),
    "int5": (Layout.INT5, 32, "free", 0, np.float16),
    "int6": (Layout.INT6, 16, "symmetric", 0, np.float16),
    "q4_k": (Layout.INT4, 256, "free", 32, np.float16),
    "q2_k": (Layout.INT4, 256, "free", 16, np.float16),
    "q6_k": (Layout.INT6, 256, "symmetric", 16, np.float16),
    "mxfp4": (Layout.E2M1, 32, "none", 0, np.uint8),
    "nvfp4": (Layout.E2M1, 16, "none", 0, np.float32),
    "nf4": (Layout.NF4, 64, "none", 0, np.float32),
    "iq4_nl": (Layout.IQ4_NL, 32, "none", 0, np.float16),
    "f8 by row": (Layout.F8, 768, "none", 0, np.float32),
    "f8 in groups": (Layout.F8, 128, "none", 0, np.float32),
}
FEATURES, COLUMNS = 21, 768


def weight_of(name: str) -> CanonicalWeight:
    layout, group, offset, sub_group, scale_type = CASES[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if sub_group:
        return random_sub_groups(rng, layout, FEATURES, COLUMNS, sub_group, offset)
    if layout in (Layout.F8, Layout.E2M1, Layout.NF4, Layout.IQ4_NL):
        return random_coded(rng, layout, FEATURES, COLUMNS, group, scale_type)
    return random_quantized(rng, layout, FEATURES, COLUMNS, group, offset, scale_type)


@pytest.mark.parametrize("name", CASES)
def test_a_packed_weight_is_the_canonical_one(name: str) -> None:
    weight = weight_of(name)
    out, want = span_of(torch.zeros(FEATURES, COLUMNS)), reference.dequantize(weight)
    dequantize(pack(weight), out)
    assert torch.equal(out, want)
    assert rest_of(out).isnan().all()
    ids = torch.tensor([3, 20, 3, 0], dtype=torch.int32)
    some = torch.empty(4, COLUMNS)
    dequantize(pack(weight), some, ids, 2.0)
    assert torch.equal(some, want[ids.long()] * 2)


@pytest.mark.parametrize("name", CASES)
def test_products(name: str) -> None:
    weight = weight_of(name)
    packed, x, bias = pack(weight), random(1, 5, COLUMNS), random(2, FEATURES)
    want = x @ reference.dequantize(weight).T
    got = span_of(torch.ones(1, FEATURES))
    quantized_gemv(span_of(x[:1]), packed, got, LinearTile(8, 128, 1), bias, accumulate=True)
    assert_near(got, want[:1] + bias + 1, torch.float32)
    words = max(16, packed.unit * packed.bits // 32)
    got, parts = span_of(torch.ones(5, FEATURES)), torch.full((2, 5, FEATURES), float("nan"))
    quantized_rows(span_of(x), packed, got, LinearTile(32, words, 4, 2, 2), bias, "relu", parts=parts)
    assert_near(got, torch.relu(want + bias), torch.float32)
    assert rest_of(got).isnan().all()


def test_products_in_half_precision() -> None:
    """Integers are multiplied as they are, so only inputs and results are rounded."""
    weight = weight_of("int4 of 128")
    x, got = random(1, 3, COLUMNS, dtype=torch.float16), torch.empty(3, FEATURES, dtype=torch.float16)
    quantized_rows(x, pack(weight), got, LinearTile(16, 16, 4))
    assert_near(got, x.float() @ reference.dequantize(weight).T, torch.float16)


def test_a_tile_may_say_how_many_rows_are_multiplied_together() -> None:
    weight, x, got = weight_of("int4 of 128"), random(1, 19, COLUMNS), torch.empty(19, FEATURES)
    quantized_rows(x, pack(weight), got, LinearTile(32, 16, 4, rows=16))
    assert_near(got, x @ reference.dequantize(weight).T, torch.float32)


def test_rows_of_a_packed_weight() -> None:
    weight = weight_of("nf4")
    out = torch.empty(4, COLUMNS)
    dequantize(pack(weight).rows(5, 9), out)
    assert torch.equal(out, reference.dequantize(weight)[5:9])


def test_what_cannot_be_packed_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(PackingError, match="layout f32 has no codes"):
        pack(dense(np.ones((2, 4))))
    with pytest.raises(PackingError, match="groups of 6 columns are no multiple of the 4 codes"):
        pack(random_quantized(rng, Layout.INT8, 2, 6, 6))


def test_choices() -> None:
    packed = pack(weight_of("int4 of 128"))
    assert choose_quantized(packed, 1, "sm90", 132) == ("gemv", LinearTile(4, 128, 4))
    assert choose_quantized(packed, 16, "sm90", 132) == ("few_rows", LinearTile(64, 16, 4, 4, 1))
    assert choose_quantized(packed, 33, "sm90", 132)[0] == "library"
    fixed = [choose_quantized(packed, rows, "sm90", 132, batch_invariant=True) for rows in (1, 2, 32)]
    assert fixed == [("few_rows", LinearTile(64, 16, 4, 4, 1, 32))] * 3
