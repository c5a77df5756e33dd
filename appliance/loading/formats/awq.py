"""Reads matrices of AWQ in the form "gemm": a word holds eight rows of a column. See checkpoint.awq for the tensors.

The nibbles of a word, lowest first, are rows 0, 2, 4, 6, 1, 3, 5, 7 (AWQ_ORDER in AutoAWQ's packing_utils.py). An
element is (code - zero point) * scale.
"""

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import Groups
from appliance.loading.formats.matrices import Read, Rows, finite_scales, integer_groups, stored_scales

_SHIFTS = np.argsort([0, 2, 4, 6, 1, 3, 5, 7]).astype(np.uint32) * np.uint32(4)  # of each of a word's rows


class AwqMatrix:
    """The rows of one matrix: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale, zeros = tensor.scale, tensor.zero_point
        assert scale is not None, "AWQ has scales"
        assert zeros is not None, "AWQ has zero points"
        self.num_rows, self._num_columns = tensor.shape
        self._words = read(tensor.name).view("<u4").reshape(self._num_columns, -1)
        self._zeros = read(zeros.name).view("<u4").reshape(scale.shape[0], -1)
        self._scales = stored_scales(scale, read, scale.shape)
        self._scale_type = scale.storage

    def groups(self, rows: Rows) -> Groups:
        places = np.arange(self.num_rows)[rows]
        scale = finite_scales(self._scales[:, rows].T, self._scale_type)
        zeros = _codes(self._zeros, places).astype(np.float32)
        return integer_groups(_codes(self._words, places), 4, zeros, scale, self._num_columns)


def _codes(words: Array, places: Array) -> Array:
    """Returns the codes of rows `places`, uint8 [n, len(words)]."""
    columns = words[:, places // 8] >> _SHIFTS[places % 8]
    return np.ascontiguousarray(columns.T).astype(np.uint8) & np.uint8(15)
