"""Reads codes with separate scale tensors, as compressed-tensors stores them: int8, or 4 and 8 bits in int32 words.

A word holds codes lowest bits first, so that in memory they are bytes in order; of 4-bit codes, the low half is first.
Packed codes are unsigned, q + 2^(bits - 1). An element is (q - zero point) * scale.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.loading.formats.bits import Array
from appliance.loading.formats.coded import nibbles
from appliance.loading.formats.dense import ELEMENT_TYPES
from appliance.loading.formats.groups import Groups
from appliance.loading.formats.matrices import Rows, finite_scales


@dataclass(frozen=True, slots=True)
class CodeTensors:
    """One matrix as stored in its checkpoint: `tensor`, and the bytes of its parts."""

    tensor: TensorFacts
    read: Callable[[str], Array]  # the stored bytes of a part, by name

    def groups(self, stored: Array, rows: Rows) -> Groups:
        """Returns the groups of some rows. `stored`: their bytes [n, row bytes]. Raises FormatError if a scale is not
        finite."""
        num_columns, bits = self.tensor.shape[1], _bits(self.tensor)
        codes = _unpacked(stored, bits)[:, :num_columns]
        if bits == 8:
            codes = (codes ^ np.uint8(0x80 if self.tensor.is_packed else 0)).view(np.int8)
        scale = self._scales(rows, len(stored))
        zero_points = self._zero_points(rows, scale)
        middle = 8 if bits == 4 else 0
        return Groups(
            codes=np.ascontiguousarray(codes),
            bits=bits,
            zero=middle if zero_points is None else 0,
            scale=scale,
            offset=None if zero_points is None else -(zero_points + np.float32(middle)) * scale,
            group_size=num_columns // scale.shape[1],
        )

    def _scales(self, rows: Rows, num_rows: int) -> Array:
        """Returns the scales f32 [n, groups]; a single scale of a whole matrix is repeated."""
        scale = self.tensor.scale
        assert scale is not None, "codes are read with their scales"
        raw = self.read(scale.name).view(ELEMENT_TYPES[scale.storage])
        if raw.size == 1:
            values = np.repeat(raw.reshape(1, 1), num_rows, axis=0)
        else:
            values = raw.reshape(self.tensor.shape[0], -1)[rows]
        return finite_scales(values, scale.storage)

    def _zero_points(self, rows: Rows, scale: Array) -> Array | None:
        """Returns the signed zero points f32 [n, groups]. A packed word holds those of several rows for one group."""
        part, num_rows = self.tensor.zero_point, self.tensor.shape[0]
        if part is None:
            return None
        raw = self.read(part.name)
        if part.storage == "i32":
            bits, places = _bits(self.tensor), np.arange(num_rows)[rows]
            words = raw.view("<u4").reshape(-1, scale.shape[1])[places * bits // 32]
            codes = (words >> (places * bits % 32).astype(np.uint32)[:, None]) & np.uint32((1 << bits) - 1)
            return codes.astype(np.float32) - np.float32(1 << (bits - 1))
        values = raw.view(np.int8)
        if values.size == 1:
            return np.full_like(scale, np.float32(values[0]))
        return values.reshape(num_rows, -1)[rows].astype(np.float32)


def _bits(tensor: TensorFacts) -> int:
    return 4 if tensor.storage.startswith("int4") else 8


def _unpacked(raw: Array, bits: int) -> Array:
    """Unpacks bytes [n, b] to unsigned codes [n, b * 8 / bits]."""
    return raw if bits == 8 else nibbles(raw)
