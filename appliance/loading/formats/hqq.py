"""Reads matrices of HQQ, quantized along their columns (axis 1) or down their rows (axis 0). See checkpoint.hqq.

The matrix is cut, in its order, into groups [groups, group size] (axis 1), or into [group size, groups] (axis 0). Codes
lie in words by row of that: a byte of codes of 4 (2) bits has those of rows that are half (a quarter) of all apart, and
32 bits have ten codes of 3 bits, the first in the highest bits. An element is (code - zero) * scale; HQQ computes it in
the type of the scale and rounds twice, and here it is exact.
"""

from dataclasses import dataclass

import numpy as np

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.facts import TensorFacts
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.matrices import Quantized, Read, Rows, finite_scales, integer_groups, stored_scales


@dataclass(frozen=True, slots=True)
class SpreadRows:
    """Elements f32 [N, K] whose groups go down the rows, for which no layout of codes has scales."""

    values: Array

    def dequantize(self) -> Array:
        return self.values

    def to_form(self, form: WeightForm) -> CanonicalWeight:
        raise FormatError(f"groups that go down the rows do not become {form.layout}")


class HqqMatrix:
    """The rows of one matrix: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale, zero = tensor.scale, tensor.zero_point
        assert scale is not None, "HQQ has scales"
        assert zero is not None, "HQQ has zeros"
        self.num_rows, self._num_columns = tensor.shape
        self._bits = int(tensor.storage[len("int")])
        self._is_spread = tensor.storage.endswith("_spread")
        shape = (-1,) if self._is_spread else (self.num_rows, -1)
        self._scales = finite_scales(stored_scales(scale, read, shape), scale.storage)
        self._zeros = finite_scales(stored_scales(zero, read, shape), zero.storage)
        width = self._scales.size if self._is_spread else self.num_rows * self._num_columns // self._scales.size
        self._words = read(tensor.name).view("<u4" if self._bits == 3 else np.uint8).reshape(-1, width)

    def groups(self, rows: Rows) -> Quantized:
        places = np.arange(self.num_rows)[rows]
        width = self._words.shape[1]
        if not self._is_spread:
            groups = self._num_columns // width
            codes = self._unpacked(places[:, None] * groups + np.arange(groups)).reshape(len(places), -1)
            return integer_groups(codes, self._bits, self._zeros[rows], self._scales[rows], self._num_columns)
        row, group = np.divmod(places[:, None] * self._num_columns + np.arange(self._num_columns), width)
        values = self._unpacked(row, group).astype(np.float32) - self._zeros[group]
        return SpreadRows(values * self._scales[group])

    def _unpacked(self, row: Array, column: Array | None = None) -> Array:
        """Returns the codes of rows of the matrix of groups, or of single places in them, uint8."""
        top = 27 if self._bits == 3 else 8 - self._bits  # the shift of the first part
        part, at = np.divmod(row, len(self._words))
        words = self._words[at] if column is None else self._words[at, column]
        shift = (top - self._bits * part).astype(words.dtype)
        mask = words.dtype.type((1 << self._bits) - 1)
        codes: Array = words >> (shift[..., None] if column is None else shift) & mask
        return codes.astype(np.uint8)
