"""Grouped integers: the common form between stored block types and the canonical integer layouts."""

from dataclasses import dataclass

import numpy as np

from appliance.catalog.formats import CENTRES, WeightForm
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.loading.formats.bits import Array


class FormatError(ValueError):
    """A tensor cannot be converted to its planned form."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Some rows of a matrix, exactly as stored: an element is (code - zero) * scale + offset. Raises FormatError if a
    scale or an offset is not finite.

    codes: uint8 [N, K], of `bits` bits; or int8 [N, K] with zero 0. scale, offset: f32 [N, K / group_size].
    sub_scale, sub_offset: int8 [N, K / sub_group_size], factors of scale and offset if groups have sub-groups; such
        groups have a zero or offsets, not both.
    """

    codes: Array
    bits: int
    zero: int
    scale: Array
    offset: Array | None
    group_size: int
    sub_scale: Array | None = None
    sub_offset: Array | None = None
    sub_group_size: int | None = None

    def __post_init__(self) -> None:
        refuse_what_is_not_finite(self.scale, "scale")
        if self.offset is not None:
            refuse_what_is_not_finite(self.offset, "offset")

    def dequantize(self) -> Array:
        """Returns the elements, f32 [N, K]."""
        num_rows = self.codes.shape[0]
        values = self.codes.astype(np.float32).reshape(num_rows, -1, self.sub_group_size or self.group_size)
        values -= np.float32(self.zero)
        values *= _products(self.scale, self.sub_scale)[..., None]
        if self.offset is not None:
            values += _products(self.offset, self.sub_offset)[..., None]
        return values.reshape(num_rows, -1)

    def to_form(self, form: WeightForm) -> CanonicalWeight:
        """Returns the canonical weight. Raises FormatError if the form cannot hold the codes, or f16 not the scales."""
        if (form.group_size, form.sub_group_size) != (self.group_size, self.sub_group_size):
            own, wanted = _sizes(self.group_size, self.sub_group_size), _sizes(form.group_size, form.sub_group_size)
            raise FormatError(f"groups of {own} do not become {form.layout} in groups of {wanted}")
        if form.layout in CENTRES:
            return self._centred(form)
        if form.layout == "int8" and (form.has_offset or self.offset is None):
            return self._int8(form)
        raise FormatError(f"{self.bits}-bit groups do not become {form}")

    def _int8(self, form: WeightForm) -> CanonicalWeight:
        signed = self.codes.view(np.int8)
        data = signed - np.int8(self.zero) if self.zero else signed
        return self._weight(form, data, self.offset)

    def _centred(self, form: WeightForm) -> CanonicalWeight:
        """Moves signed codes to the layout's centre, so that kernels need no offsets."""
        if self.bits > form.element_bits:
            raise FormatError(f"{self.bits}-bit codes do not fit {form.layout}")
        zero, codes = self.zero, self.codes
        if self.offset is None and zero:
            zero, codes = CENTRES[form.layout], codes + np.uint8(CENTRES[form.layout] - zero)
        shift = np.zeros_like(self.scale) if self.offset is None else self.offset
        data = pairs_of(codes) if form.layout == "int4" else codes
        return self._weight(form, data, shift - np.float32(zero) * self.scale)

    def _weight(self, form: WeightForm, data: Array, offset: Array | None) -> CanonicalWeight:
        keep = to_f16 if form.scale_bytes == 2 else _to_f32
        return CanonicalWeight(
            layout=Layout(form.layout),
            out_features=self.codes.shape[0],
            in_features=self.codes.shape[1],
            data=data,
            scale=keep(self.scale),
            offset=None if offset is None else keep(offset),
            group_size=self.group_size,
            sub_scale=self.sub_scale,
            sub_offset=self.sub_scale if self.offset is None else self.sub_offset,
            sub_group_size=self.sub_group_size,
        )


def refuse_what_is_not_finite(values: Array, noun: str) -> None:
    """Raises FormatError for a NaN or an infinity."""
    if not np.isfinite(values).all():
        raise FormatError(f"{'an' if noun[0] in 'aeiou' else 'a'} {noun} is not finite")


def _products(scale: Array, factors: Array | None) -> Array:
    """Returns f32 [N, groups], or one for each sub-group if there are `factors`."""
    if factors is None:
        return scale
    products: Array = scale[..., None] * factors.reshape(*scale.shape, -1)
    return products.reshape(len(scale), -1)


def _sizes(group_size: int | None, sub_group_size: int | None) -> str:
    return f"{group_size}" if sub_group_size is None else f"{group_size} with sub-groups of {sub_group_size}"


def pairs_of(codes: Array) -> Array:
    """Packs two 4-bit codes into each byte, the first one low."""
    words = np.ascontiguousarray(codes).view(np.uint16)  # little-endian: the first of two codes is the low byte
    return (words | (words >> 4)).astype(np.uint8)


def _to_f32(values: Array) -> Array:
    return values.astype(np.float32)


def to_f16(values: Array) -> Array:
    """Rounds to nearest. Raises FormatError if the result is not finite."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise FormatError("a group scale lies beyond the range of f16")
    return rounded
