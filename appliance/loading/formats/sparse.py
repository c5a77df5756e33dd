"""Reads rows of sparse matrices, whose stored values have a bit each. See checkpoint.sparse for the tensors."""

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.bits import Array
from appliance.loading.formats.dense import ELEMENT_TYPES
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.matrices import Read, Rows

_NUM_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # of a byte


class SparseRows:
    """The rows of a sparse matrix as if it were dense: elements [n, K] as stored, uint8 for types of one byte.

    Raises FormatError if bits and values are not equally many.
    """

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        assert tensor.bitmask is not None, "sparse tensors have bits"
        num_rows, self._num_columns = tensor.shape
        self._bits = read(tensor.bitmask.name).reshape(num_rows, -1)
        self._values = read(tensor.name).reshape(-1).view(ELEMENT_TYPES.get(tensor.storage, np.dtype(np.uint8)))
        counts = _NUM_BITS[self._bits].sum(axis=1, dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(counts)))  # of each row among the values
        if self._starts[-1] != self._values.size:
            raise FormatError(f"the bitmask marks {self._starts[-1]} elements, and {self._values.size} are stored")

    def __len__(self) -> int:
        return len(self._bits)

    def __getitem__(self, rows: Rows) -> Array:
        places = np.arange(len(self))[rows]
        bits = np.unpackbits(self._bits[places], axis=1, count=self._num_columns, bitorder="little").view(np.bool_)
        dense = np.zeros(bits.shape, self._values.dtype)
        pieces = [self._values[self._starts[row] : self._starts[row + 1]] for row in places]
        dense[bits] = np.concatenate(pieces) if pieces else self._values[:0]
        return dense
