"""Reads a matrix of equal parts, such as heads, whose columns become rows part by part."""

from typing import Protocol

import numpy as np

from appliance.loading.formats.bits import Array
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.matrices import Rows


class _Values(Protocol):
    """Rows of a stored matrix as f32."""

    def __len__(self) -> int: ...

    def values(self, start: int, stop: int) -> Array: ...


class TransposedParts:
    """The rows of num_parts equal parts [rows, columns] as [columns, rows] each, one part after the other."""

    def __init__(self, stored: _Values, num_parts: int) -> None:
        """Raises FormatError if the rows do not divide into the parts."""
        if not len(stored) or len(stored) % num_parts:
            raise FormatError(f"{len(stored)} rows do not divide into {num_parts} parts")
        self._stored = stored
        self._num_parts = num_parts
        self._part_rows = len(stored) // num_parts
        self._columns = int(stored.values(0, 1).shape[1])

    def __len__(self) -> int:
        return self._num_parts * self._columns

    def values(self, rows: Rows) -> Array:
        """Returns f32 rows; only the parts in which they lie are read."""
        asked = np.arange(len(self))[rows]
        first, last = int(asked.min()) // self._columns, int(asked.max()) // self._columns
        stored = self._stored.values(first * self._part_rows, (last + 1) * self._part_rows)
        parts = stored.reshape(last + 1 - first, self._part_rows, self._columns)
        flat = parts.swapaxes(1, 2).reshape(-1, self._part_rows)
        chosen: Array = flat[asked - first * self._columns]
        return chosen
