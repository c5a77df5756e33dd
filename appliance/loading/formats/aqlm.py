"""Reads matrices of AQLM, whose groups are sums of vectors out of codebooks. See checkpoint.aqlm for the tensors.

A group of out group x in group elements is the sum of one vector of each codebook, times the scale of its rows. The
library rounds the sum and the product to the type of the codebooks, f16 or bf16 (`_dequantize_weight`), and so does
this. With one codebook, or two of f16, the values are the library's to the bit; sums of bf16 are rounded to even here,
and ties away from zero there.
"""

from dataclasses import dataclass

import numpy as np

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.facts import TensorFacts
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.formats.bits import Array
from appliance.loading.formats.dense import narrow, widen
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.matrices import Quantized, Read, Rows, stored_scales


@dataclass(frozen=True, slots=True)
class Sums:
    """Elements f32 [N, K] of sums, which have no codes of their own."""

    values: Array

    def dequantize(self) -> Array:
        return self.values

    def to_form(self, form: WeightForm) -> CanonicalWeight:
        raise FormatError(f"sums of codebooks do not become {form.layout}")


class AdditiveMatrix:
    """The rows of one matrix: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale, (books,) = tensor.scale, tensor.more
        assert scale is not None, "AQLM has scales"
        num_books, size, self._high, wide = books.shape
        self.num_rows, num_columns = tensor.shape
        self._type = books.storage
        self._books = stored_scales(books, read, books.shape)
        self._scales = stored_scales(scale, read, (-1,))
        num_bytes = tensor.size_bytes * self._high * wide // (self.num_rows * num_columns * num_books)
        codes = read(tensor.name).view(f"<u{num_bytes}").reshape(-1, num_columns // wide, num_books)
        self._codes, self._mask = codes, codes.dtype.type(size - 1)

    def groups(self, rows: Rows) -> Quantized:
        group, row = np.divmod(np.arange(self.num_rows)[rows], self._high)
        codes = self._codes[group] & self._mask
        total = np.zeros((*codes.shape[:2], self._books.shape[3]), np.float32)
        for place, book in enumerate(self._books):
            total += widen(book[codes[..., place], row[:, None]], self._type)
        values = self._rounded(total) * widen(self._scales[group], self._type)[:, None, None]
        if not np.isfinite(values).all():
            raise FormatError("a scale or an element of a codebook is not finite")
        return Sums(self._rounded(values).reshape(len(group), -1))

    def _rounded(self, values: Array) -> Array:
        return widen(narrow(values, self._type), self._type)
