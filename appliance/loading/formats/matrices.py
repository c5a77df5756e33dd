"""What a reader of one stored matrix gives, and the steps that readers of several formats share."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.facts import TensorFacts
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.formats.bits import Array
from appliance.loading.formats.dense import ELEMENT_TYPES, widen
from appliance.loading.formats.groups import FormatError, Groups

Rows = slice | np.ndarray[Any, np.dtype[np.intp]]  # of the matrix, not of the file
Read = Callable[[str], Array]  # the stored bytes of a tensor, by name


class Quantized(Protocol):
    """Rows of a matrix as codes with scales."""

    def dequantize(self) -> Array:
        """Returns the elements, f32 [N, K]."""

    def to_form(self, form: WeightForm) -> CanonicalWeight:
        """Returns the canonical weight. Raises FormatError if the form cannot hold the codes or scales."""


class MatrixReader(Protocol):
    """Reads rows of one matrix that is more than rows of blocks.

    Its arguments are the tensor, of two dimensions, and what reads the bytes of a part.
    """

    num_rows: int

    def groups(self, rows: Rows) -> Quantized:
        """Returns rows as codes with scales. Raises FormatError if the tensors hold what no matrix can have."""


def finite_scales(values: Array, storage: str) -> Array:
    """Converts stored scales to f32. Raises FormatError if one is not finite."""
    scales = widen(values, storage)
    if not np.isfinite(scales).all():
        raise FormatError("a scale is not finite")
    return scales


def stored_scales(part: TensorFacts, read: Read, shape: tuple[int, ...]) -> Array:
    """Returns a view of a part with elements of ELEMENT_TYPES, in `shape`."""
    return read(part.name).view(ELEMENT_TYPES[part.storage]).reshape(shape)


def integer_groups(codes: Array, bits: int, zeros: Array | None, scale: Array, num_columns: int) -> Groups:
    """Makes groups of unsigned codes [N, K] with zero points and scales f32 [N, groups]; no zero points are the middle.

    Groups of several times 256 columns become groups of 256.
    """
    repeats = num_columns // scale.shape[1] // 256
    if scale.shape[1] > 1 and repeats > 1:
        scale = np.repeat(scale, repeats, axis=1)
        zeros = None if zeros is None else np.repeat(zeros, repeats, axis=1)
    middle = 1 << (bits - 1)
    is_signed = bits == 8
    if is_signed:
        codes = (codes ^ np.uint8(middle)).view(np.int8)
    offset = None if zeros is None else (np.float32(middle if is_signed else 0) - zeros) * scale
    zero = 0 if is_signed or zeros is not None else middle
    return Groups(np.ascontiguousarray(codes), bits, zero, scale, offset, num_columns // scale.shape[1])
