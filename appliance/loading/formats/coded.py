"""Codes that stand for floats: the common form between stored tensors and the layouts f8 and those of books."""

from dataclasses import dataclass

import numpy as np

from appliance.catalog.formats import BOOK_LAYOUTS, CanonicalLayout, WeightForm
from appliance.kernels.codes import CODE_VALUES, E4M3_NAN, e8m0_to_f32
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import FormatError, pairs_of, refuse_what_is_not_finite, to_f16

_E8M0_NAN = 255


@dataclass(frozen=True, slots=True)
class Coded:
    """Some rows of a matrix: an element is the value of its code in `layout`, times the scale of its group. Raises
    FormatError if a scale is not finite.

    codes: uint8 [N, K], one a byte. scale: f32 [N, K / group_size], or uint8 for e8m0.
    """

    layout: CanonicalLayout
    codes: Array
    scale: Array
    group_size: int

    def __post_init__(self) -> None:
        refuse_what_is_not_finite(self.scale, "scale")

    def dequantize(self) -> Array:
        """Returns the elements, f32 [N, K]."""
        num_rows = len(self.codes)
        values = CODE_VALUES[self.layout][self.codes].reshape(num_rows, -1, self.group_size)
        scale = e8m0_to_f32(self.scale) if self.scale.dtype == np.uint8 else self.scale
        values *= scale[..., None]
        return values.reshape(num_rows, -1)

    def to_form(self, form: WeightForm) -> CanonicalWeight:
        """Returns the canonical weight. Raises FormatError if the form is another, or f16 cannot hold the scales."""
        if (form.layout, form.group_size) != (self.layout, self.group_size):
            raise FormatError(f"{self.layout} in groups of {self.group_size} does not become {form}")
        return CanonicalWeight(
            layout=Layout(self.layout),
            out_features=self.codes.shape[0],
            in_features=self.codes.shape[1],
            data=pairs_of(self.codes) if self.layout in BOOK_LAYOUTS else self.codes,
            scale=to_f16(self.scale) if form.scale_bytes == 2 else self.scale,
            group_size=self.group_size,
        )


def checked_e4m3(codes: Array) -> Array:
    """Returns the codes. Raises FormatError if one is NaN."""
    if ((codes & E4M3_NAN) == E4M3_NAN).any():
        raise FormatError("a code of e4m3 is not a number")
    return codes


def checked_e8m0(scales: Array) -> Array:
    """Returns the scales. Raises FormatError if one is NaN."""
    if (scales == _E8M0_NAN).any():
        raise FormatError("a scale of e8m0 is not a number")
    return scales


def nibbles(octets: Array, *, low_first: bool = True) -> Array:
    """Unpacks bytes [n, b] to codes uint8 [n, 2 b]."""
    low, high = octets & 15, octets >> 4
    return np.stack((low, high) if low_first else (high, low), axis=-1).reshape(len(octets), -1)
