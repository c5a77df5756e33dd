"""Quantizes dense weights while loading: int8 without offsets, int4 with them, e4m3, and bitsandbytes' NF4."""

import numpy as np

from appliance.catalog.formats import WeightForm
from appliance.kernels.codes import CODE_VALUES
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.formats.bits import Array
from appliance.loading.formats.coded import Coded
from appliance.loading.formats.groups import FormatError, Groups, to_f16

_LEAST = np.float32(1e-38)
_E4M3_LARGEST = np.float32(448.0)
_E4M3_CUT = 20  # binary digits of f32's fraction that e4m3 has not
_E4M3_REBIAS = 127 - 7  # between the exponents of both
_NF4_BOUNDS = (CODE_VALUES["nf4"][:-1] + CODE_VALUES["nf4"][1:]) / np.float32(2.0)


def quantize(values: Array, form: WeightForm) -> CanonicalWeight:
    """Quantizes values f32 [N, K]. Scales are rounded to f16 first, so that codes are nearest for the stored scale.

    Raises FormatError if the layout is another, the columns do not divide into groups, or a value is not finite.
    """
    if form.layout not in ("int8", "int4", "f8", "nf4"):
        raise FormatError(f"floats are not rounded to {form.layout} while loading")
    group_size = form.group_size or values.shape[1]
    if values.shape[1] % group_size:
        raise FormatError(f"{values.shape[1]} columns do not divide into groups of {group_size}")
    if not np.isfinite(values).all():
        raise FormatError("a weight is not finite")
    grouped = np.ascontiguousarray(values).reshape(values.shape[0], -1, group_size)
    if form.layout == "nf4":
        return _to_nf4(grouped).to_form(WeightForm("nf4", group_size, scale_bytes=4))
    if form.layout == "f8":
        return _to_e4m3(grouped).to_form(WeightForm("f8", group_size, scale_bytes=4))
    groups = _to_int8(grouped) if form.layout == "int8" else _to_int4(grouped)
    return groups.to_form(WeightForm(form.layout, group_size, form.has_offset))


def _to_int8(grouped: Array) -> Groups:
    scale = _kept(np.abs(grouped).max(axis=-1) / 127.0)
    codes = np.clip(np.rint(grouped * _inverse(scale)[..., None]), -127, 127).astype(np.int8)
    return Groups(codes.reshape(len(grouped), -1), 8, 0, scale, None, grouped.shape[-1])


def _to_int4(grouped: Array) -> Groups:
    low = np.minimum(grouped.min(axis=-1), 0.0)
    scale = _kept((np.maximum(grouped.max(axis=-1), 0.0) - low) / 15.0)
    offset = _kept(low)
    codes = np.clip(np.rint((grouped - offset[..., None]) * _inverse(scale)[..., None]), 0, 15).astype(np.uint8)
    return Groups(codes.reshape(len(grouped), -1), 4, 0, scale, offset, grouped.shape[-1])


def _to_e4m3(grouped: Array) -> Coded:
    """The largest magnitude of a group becomes the largest code. Codes are the nearest, the even one of two as near."""
    scale = np.abs(grouped).max(axis=-1) / _E4M3_LARGEST
    shares = np.clip(grouped * _inverse(scale)[..., None], -_E4M3_LARGEST, _E4M3_LARGEST)
    return Coded("f8", e4m3_codes(shares.reshape(len(grouped), -1)), scale, grouped.shape[-1])


def e4m3_codes(values: Array) -> Array:
    """Returns the codes uint8 of f32 values from -448 to 448. Their bits are those of f32 with fewer digits; below 2^-6
    codes count steps of 2^-9."""
    bits = np.abs(values).view(np.uint32)
    rounded = (bits + np.uint32((1 << _E4M3_CUT - 1) - 1) + ((bits >> _E4M3_CUT) & 1)) >> _E4M3_CUT
    large = rounded - np.uint32(_E4M3_REBIAS << 3)
    small = np.rint(np.abs(values) * np.float32(512.0)).astype(np.uint32)
    codes = np.where(np.abs(values) < np.float32(2.0**-6), small, large).astype(np.uint8)
    signed: Array = codes | (np.signbit(values).astype(np.uint8) << 7)
    return signed


def _to_nf4(grouped: Array) -> Coded:
    """Takes the nearest value, the lower one of two that are as near (bitsandbytes' quantize_4bit, to the bit)."""
    largest = np.abs(grouped).max(axis=-1)
    inverse = np.float32(1.0) / np.maximum(largest, _LEAST)
    shares = np.clip(grouped * inverse[..., None], -1, 1)
    codes = np.searchsorted(_NF4_BOUNDS, shares.reshape(len(grouped), -1), side="left").astype(np.uint8)
    return Coded("nf4", codes, largest, grouped.shape[-1])


def _kept(values: Array) -> Array:
    """Rounds the values to f16, and returns them as f32."""
    return to_f16(values).astype(np.float32)


def _inverse(scale: Array) -> Array:
    """Returns 1 / scale; zero where the scale is zero."""
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
