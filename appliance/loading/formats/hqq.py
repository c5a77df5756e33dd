"""Reads matrices of HQQ, quantized along the columns of the matrix (axis 1). See checkpoint.hqq for the tensors.

The matrix is cut into groups in its order, [groups, group size]. A byte of codes of 4 (2) bits has those of groups that
are half (a quarter) of all groups apart, the first in the highest bits. An element is (code - zero) * scale; HQQ
computes it in the type of the scale and rounds twice, and here it is exact.
"""

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import Groups
from appliance.loading.formats.matrices import Read, Rows, finite_scales, integer_groups, stored_scales


class HqqMatrix:
    """The rows of one matrix: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale, zero = tensor.scale, tensor.zero_point
        assert scale is not None, "HQQ has scales"
        assert zero is not None, "HQQ has zeros"
        self.num_rows, self._num_columns = tensor.shape
        self._bits = int(tensor.storage[len("int")])
        shape = (self.num_rows, -1)
        self._scales = finite_scales(stored_scales(scale, read, shape), scale.storage)
        self._zeros = finite_scales(stored_scales(zero, read, shape), zero.storage)
        per_byte = 8 // self._bits
        self._parts = read(tensor.name).reshape(self.num_rows // per_byte, self._num_columns)

    def groups(self, rows: Rows) -> Groups:
        places = np.arange(self.num_rows)[rows]
        part, row = np.divmod(places, len(self._parts))
        shift = (8 - self._bits * (1 + part)).astype(np.uint8)[:, None]
        codes: Array = self._parts[row] >> shift & np.uint8((1 << self._bits) - 1)
        return integer_groups(codes, self._bits, self._zeros[rows], self._scales[rows], self._num_columns)
