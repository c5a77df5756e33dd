"""The values of codes that stand for floats: e4m3, and the books of 16 values; kernels/cpu/code_book.h has the same."""

from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

E4M3_NAN: Final = 0x7F  # with either sign


def e8m0_to_f32(codes: Array) -> Array:
    """Returns two to the power of (code - 127), f32. 255 would be NaN, and is for the caller to refuse."""
    bits = codes.astype(np.uint32) << np.uint32(23)
    bits[codes == 0] = 0x00400000
    return bits.view(np.float32)


def _e4m3() -> Array:
    """Returns the values of all 256 codes of e4m3 without infinities (fn), f32."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, (codes & 7) / 8.0
    magnitude = np.where(exponent == 0, fraction * 2.0**-6, (1.0 + fraction) * 2.0 ** (exponent - 7.0))
    magnitude[codes & E4M3_NAN == E4M3_NAN] = np.nan
    return np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the OCP formats MXFP4 and NVFP4
_FP4 = (0.0, 0.0625 / 12, 8.0 / 12, 1.0, 4.0 / 12, 6.0 / 12, 2.0 / 12, 3.0 / 12)  # bitsandbytes
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # ggml's kvalues_iq4nl

# The value of each code, f32, by layout.
CODE_VALUES: Final[dict[str, Array]] = {
    "f8": _e4m3(),
    "e2m1": np.array((*_E2M1, *(-value for value in _E2M1)), np.float32),
    "nf4": np.array(_NF4, np.float32),
    "fp4": np.array((*_FP4, *(-value for value in _FP4)), np.float32),
    "iq4_nl": np.array(_IQ4_NL, np.float32),
}
