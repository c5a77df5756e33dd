"""Reads matrices of e4m3 codes with scales of the matrix, its rows, groups of columns, or blocks of both."""

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.coded import Coded, checked_e4m3
from appliance.loading.formats.matrices import Read, Rows, finite_scales, stored_scales


class E4m3Matrix:
    """The rows of one matrix: a MatrixReader. Scales are one, one a row, or [row blocks, groups]."""

    def __init__(self, tensor: TensorFacts, read: Read, index: int | None) -> None:
        assert index is None, "stacks of e4m3 are not joined"
        scale = tensor.scale
        assert scale is not None, "codes of e4m3 have scales"
        self.num_rows, num_columns = tensor.shape
        self._codes = read(tensor.name).reshape(tensor.shape)
        self._scales = stored_scales(scale, read, (scale.shape[0] if scale.shape else 1, -1))
        self._scale_type = scale.storage
        self._group_size = num_columns if tensor.storage == "f8_channel" else int(tensor.storage.removeprefix("f8_g"))
        self._block_rows = tensor.block_rows or 1

    def groups(self, rows: Rows) -> Coded:
        places = np.arange(self.num_rows)[rows] // self._block_rows
        scale = finite_scales(self._scales[places], self._scale_type)
        return Coded("f8", checked_e4m3(self._codes[rows]), scale, self._group_size)
