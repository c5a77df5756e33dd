"""Dense elements: reading f64, f32, f16 and bf16, and rounding f32 to a dense layout."""

from typing import Any

import numpy as np

from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import FormatError

ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype("<f8"),
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
}


def widen(values: Array, storage: str) -> Array:
    """Converts stored elements (bf16 as uint16) to f32."""
    if storage == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def narrow(values: Array, layout: str) -> Array:
    """Rounds f32 to nearest even. Raises FormatError if a finite value is out of the range of f16."""
    if layout == "f32":
        return np.ascontiguousarray(values, np.float32)
    if layout == "bf16":
        return round_to_bf16(values)
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16)
    if not np.isfinite(rounded).all() and np.isfinite(values).all():
        raise FormatError("a weight lies beyond the range of f16")
    return rounded


def round_to_bf16(values: Array) -> Array:
    """Returns the upper halves of f32 as uint16, rounded to nearest even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    result = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        result[is_nan] = 0x7FC0
    return result


def dense_weight(data: Array, layout: str) -> CanonicalWeight:
    """Makes a canonical weight of data [N, K], or of a vector, in the layout's element type."""
    rows, columns = data.shape if data.ndim == 2 else (1, data.size)
    return CanonicalWeight(Layout(layout), rows, columns, data.reshape(rows, columns))
