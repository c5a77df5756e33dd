"""Reads matrices of e4m3 codes with scales of the matrix, its rows, groups of columns, or blocks of both."""

from typing import Any

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.coded import Coded, checked_e4m3
from appliance.loading.formats.matrices import Read, Rows, finite_scales, stored_scales
from appliance.loading.formats.sparse import SparseRows

Order = np.ndarray[Any, np.dtype[np.intp]]


class E4m3Matrix:
    """The rows of one matrix: a MatrixReader. Scales are one, one a row, or [row blocks, groups]."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale = tensor.scale
        assert scale is not None, "codes of e4m3 have scales"
        self.num_rows, num_columns = tensor.shape
        self._codes = SparseRows(tensor, read) if tensor.bitmask else read(tensor.name).reshape(tensor.shape)
        self._scales = stored_scales(scale, read, (scale.shape[0] if scale.shape else 1, -1))
        self._scale_type = scale.storage
        self._group_size = num_columns if tensor.storage == "f8_channel" else int(tensor.storage.removeprefix("f8_g"))
        self._block_rows = tensor.block_rows or 1

    def groups(self, rows: Rows) -> Coded:
        places = np.arange(self.num_rows)[rows] // self._block_rows
        scale = finite_scales(self._scales[places], self._scale_type)
        return Coded("f8", checked_e4m3(self._codes[rows]), scale, self._group_size)


class TransposedBlocks:
    """Equal parts of the rows of a matrix with square blocks, the columns of each part as rows: a MatrixReader.

    A block's scale is then that of as many columns of a row, so nothing is rounded. `order`: the stored rows of each
    part, [parts, rows]; see `takes_whole_blocks`.
    """

    def __init__(self, tensor: TensorFacts, read: Read, order: Order) -> None:
        scale = tensor.scale
        assert scale is not None, "codes of e4m3 have scales"
        self._columns = tensor.shape[1]
        self._size = tensor.block_rows or 1
        self._order = order
        self.num_rows = len(order) * self._columns
        self._codes = read(tensor.name).reshape(tensor.shape)
        self._scales = finite_scales(stored_scales(scale, read, scale.shape), scale.storage)

    def groups(self, rows: Rows) -> Coded:
        part, column = np.divmod(np.arange(self.num_rows)[rows], self._columns)
        stored, column = self._order[part], column[:, None]
        scale = self._scales[stored[:, :: self._size] // self._size, column // self._size]
        return Coded("f8", checked_e4m3(self._codes[stored, column]), scale, self._size)


def takes_whole_blocks(tensor: TensorFacts, order: Order) -> bool:
    """Returns whether parts of rows begin and end with square blocks. order: their stored rows, [parts, rows]."""
    size = tensor.block_rows
    is_dense = tensor.packing == "e4m3" and tensor.bitmask is None
    is_square = bool((np.diff(order) == 1).all()) and is_dense and tensor.storage == f"f8_g{size}"
    return is_square and size is not None and order.shape[1] % size == 0 and not (order[:, 0] % size).any()
