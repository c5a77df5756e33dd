"""Quantization while loading: the stated errors hold, and hard cases do not break it."""

import hashlib

import numpy as np
import pytest
import torch

from appliance.catalog.formats import LOAD_QUANTIZATIONS, WeightForm
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.reference.weights import dequantize
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.rounding import e4m3_codes, quantize

INT8 = [WeightForm("int8", 32), WeightForm("int8", 128), WeightForm("int8")]
INT4 = WeightForm("int4", 32, has_offset=True)


def normal(shape: tuple[int, int] = (5, 256)) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.05, shape).astype(np.float32)


def restored(weight: CanonicalWeight) -> np.ndarray:
    values = weight.data
    if weight.layout is Layout.INT4:
        values = np.stack((values & 15, values >> 4), axis=-1).reshape(weight.out_features, -1)
    assert weight.scale is not None
    grouped = values.astype(np.float32).reshape(weight.out_features, -1, weight.group_size)
    grouped = grouped * weight.scale.astype(np.float32)[..., None]
    if weight.offset is not None:
        grouped = grouped + weight.offset.astype(np.float32)[..., None]
    return grouped.reshape(weight.out_features, -1)


@pytest.mark.parametrize("form", INT8)
def test_int8_is_within_half_a_step_of_the_largest_weight(form: WeightForm) -> None:
    values = normal()
    weight = quantize(values, form)
    size = form.group_size or 256
    assert weight.group_size == size
    assert weight.offset is None
    largest = np.abs(values).reshape(5, -1, size).max(axis=-1)
    bound = np.repeat(largest / 254, size, axis=1) * (1 + 2**-9)
    assert (np.abs(restored(weight) - values) <= bound).all()


def test_int4_is_within_half_a_step_of_the_range() -> None:
    values = normal() + 0.02
    groups = values.reshape(5, -1, 32)
    reach = np.maximum(groups.max(axis=-1), 0) - np.minimum(groups.min(axis=-1), 0)
    bound = np.repeat(reach / 30, 32, axis=1) * 1.02
    assert (np.abs(restored(quantize(values, INT4)) - values) <= bound).all()


@pytest.mark.parametrize("form", [INT8[0], INT4])
def test_zeros_stay_zeros(form: WeightForm) -> None:
    values = normal()
    values[1] = 0
    values[2, 32:64] = 0
    back = restored(quantize(values, form))
    assert not back[1].any()
    assert not back[2, 32:64].any()


def test_a_group_of_one_sign_keeps_zero_in_reach() -> None:
    values = np.full((1, 32), 0.5, np.float32)
    np.testing.assert_allclose(restored(quantize(values, INT4)), values, rtol=2**-9)


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(FormatError, match="do not divide"):
        quantize(normal((2, 48)), INT8[0])
    with pytest.raises(FormatError, match="not finite"):
        quantize(np.full((1, 32), np.nan, np.float32), INT8[0])
    with pytest.raises(FormatError, match="range of f16"):
        quantize(np.full((1, 32), 1e30, np.float32), INT8[0])


def test_e4m3_is_what_torch_rounds_to() -> None:
    """Every float between neighbouring codes, ties and subnormals among them."""
    steps = torch.linspace(0, 1, 17)[:-1]
    codes = torch.arange(126, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    after = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    values = (codes[:, None] + (after - codes)[:, None] * steps).flatten()
    values = torch.cat((values, -values, torch.tensor([448.0, -448.0])))
    expected = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(e4m3_codes(values.numpy()), expected)


def test_rows_of_e4m3_are_within_their_stated_error() -> None:
    values = normal()
    values[1], values[2] = 0, values[2] * 1e-6
    form, _ = LOAD_QUANTIZATIONS["fp8"]["linear"]
    weight = quantize(values, form)
    assert (weight.layout, weight.group_size) == (Layout.F8, 256)
    bound = np.maximum(np.abs(values) / 16, np.abs(values).max(axis=1, keepdims=True) / 458_752) * (1 + 2**-20)
    back = dequantize(weight).numpy()
    assert (np.abs(back - values) <= bound).all()
    assert not back[1].any()
    assert np.abs(back[0]).max() == pytest.approx(np.abs(values[0]).max())


@pytest.mark.parametrize(("dtype", "digest"), [("float32", "c73baef322a54b0e"), ("bfloat16", "517e31ffb9714ce1")])
def test_nf4_is_what_bitsandbytes_makes(dtype: str, digest: str) -> None:
    """Digests of what its quantize_4bit and dequantize_4bit made of these values, version 0.50.2 on a CPU."""
    matrix = torch.randn(96, 512, generator=torch.Generator().manual_seed(7)) * 0.02 + 0.003
    matrix[3, 64:128] = 0.0
    matrix[4, 0:64] = -0.0
    form, _ = LOAD_QUANTIZATIONS["bitsandbytes"]["linear"]
    weight = quantize(matrix.to(getattr(torch, dtype)).float().numpy(), form)
    values = dequantize(weight).contiguous().numpy()
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest
