"""Reads matrices of GPTQ, whose codes are packed along the columns of the matrix. See checkpoint.gptq for the tensors.

An element is (code - zero point) * scale, with the zero point and scale of its column's group. The first format stores
zero points minus one, modulo the number of codes: AutoGPTQ adds one and masks (qlinear_cuda.py), and so does this.
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
class Ordered:
    """Codes [N, K] whose columns are in groups `order` [K], with zero points and scales f32 [N, groups]."""

    codes: Array
    zeros: Array
    scale: Array
    order: Array

    def dequantize(self) -> Array:
        values: Array = (self.codes - self.zeros[:, self.order]) * self.scale[:, self.order]
        return values

    def to_form(self, form: WeightForm) -> CanonicalWeight:
        raise FormatError(f"columns in groups of any order do not become {form.layout}")


class GptqMatrix:
    """The rows of one matrix: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale, zeros = tensor.scale, tensor.zero_point
        assert scale is not None, "GPTQ has scales"
        assert zeros is not None, "GPTQ has zero points"
        self.num_rows, self._num_columns = tensor.shape
        self._bits = int(tensor.storage[len("int")])
        self._num_groups = scale.shape[0]
        self._words = read(tensor.name).view("<u4").reshape(-1, self.num_rows)
        self._scales = stored_scales(scale, read, scale.shape)
        self._scale_type = scale.storage
        self._zeros = self._zero_points(read(zeros.name).view("<u4").reshape(self._num_groups, -1), tensor)
        order = None if tensor.order is None else read(tensor.order.name).view("<i4")
        self._order = self._checked_order(order, has_order=tensor.storage.endswith("_order"))

    def groups(self, rows: Rows) -> Quantized:
        scale = finite_scales(self._scales[:, rows].T, self._scale_type)
        zeros = None if self._zeros is None else self._zeros[:, rows].T.astype(np.float32)
        if self._order is None:
            return integer_groups(self._codes(rows), self._bits, zeros, scale, self._num_columns)
        assert zeros is not None, "matrices with an order keep their zero points"
        return Ordered(self._codes(rows), zeros, scale, self._order)

    def _codes(self, rows: Rows) -> Array:
        """Returns uint8 [n, K]."""
        return unpacked(np.ascontiguousarray(self._words[:, rows].T), self._bits)

    def _zero_points(self, words: Array, tensor: TensorFacts) -> Array | None:
        """Returns uint8 [groups, N]; None if all are the middle. Raises FormatError if they should be and are not."""
        stored = unpacked(np.ascontiguousarray(words), self._bits)
        zeros = stored if tensor.packing == "gptq_v2" else (stored + np.uint8(1)) & np.uint8((1 << self._bits) - 1)
        if tensor.storage.endswith(("_zp", "_order")):
            return zeros
        middle = 1 << (self._bits - 1)
        if not (zeros == middle).all():
            raise FormatError(f"a zero point is not {middle}, and the config says that the codes are symmetric")
        return None

    def _checked_order(self, order: Array | None, *, has_order: bool) -> Array | None:
        if order is None:
            return None
        if order.min() < 0 or order.max() >= self._num_groups:
            raise FormatError(f"g_idx names groups from {order.min()} to {order.max()} of {self._num_groups}")
        if has_order:
            return order
        size = self._num_columns // self._num_groups
        if not np.array_equal(order, np.arange(self._num_columns) // size):
            raise FormatError("g_idx is not in the order of its columns, and the config denies act-order")
        return None


def unpacked(words: Array, bits: int) -> Array:
    """Unpacks uint32 words [n, w], a stream of codes with the lowest bits first, to uint8 [n, w * 32 / bits]."""
    octets = words.view(np.uint8)
    if bits == 8:
        return octets
    if bits == 3:
        columns = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(words), -1, 3)
        return columns @ np.array([1, 2, 4], np.uint8)
    parts = [octets >> np.uint8(shift) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(len(words), -1)
