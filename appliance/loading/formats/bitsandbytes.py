"""Reads matrices of bitsandbytes: NF4 and FP4 with one or two levels of scales, and int8.

Codes of four bits lie in the order of the matrix, high nibble first, and a block of them shares a scale (absmax). With
double quantization the scales are themselves codes of 8 bits in a map of 256 values, in blocks with scales of their
own, and the mean that was taken off is put back.
"""

import json
from typing import Any

import numpy as np

from appliance.catalog.formats import CanonicalLayout
from appliance.checkpoint.facts import TensorFacts
from appliance.kernels.codes import CODE_VALUES
from appliance.loading.formats.bits import Array
from appliance.loading.formats.coded import Coded, nibbles
from appliance.loading.formats.groups import FormatError, Groups
from appliance.loading.formats.matrices import Read, Rows, finite_scales, stored_scales

_ONE_127TH = np.float32(7.874015718698502e-3)  # functional.int8_vectorwise_dequant


class FourBitMatrix:
    """The rows of one matrix of NF4 or FP4: a MatrixReader. `more`: book, state, nested scales, their map."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        self.num_rows, num_columns = tensor.shape
        self._layout: CanonicalLayout = "nf4" if tensor.storage.startswith("nf4") else "fp4"
        self._kept = int(tensor.storage.rpartition("g")[2])
        book, state, *nested = tensor.more
        if not np.array_equal(read(book.name).view("<f4"), CODE_VALUES[self._layout]):
            raise FormatError(f"{book.name} is not the map of {self._layout}")
        self._codes = read(tensor.name).reshape(self.num_rows, num_columns // 2)
        settings = json.loads(read(state.name).tobytes())
        self._scales = self._all_scales(tensor, nested, settings, read).reshape(self.num_rows, -1)
        self._repeats = num_columns // self._scales.shape[1] // self._kept

    def groups(self, rows: Rows) -> Coded:
        scale = np.repeat(self._scales[rows], self._repeats, axis=1)
        return Coded(self._layout, nibbles(self._codes[rows], low_first=False), scale, self._kept)

    def _all_scales(
        self, tensor: TensorFacts, nested: list[TensorFacts], settings: dict[str, Any], read: Read
    ) -> Array:
        assert tensor.scale is not None, "bitsandbytes has scales"
        if not nested:
            return finite_scales(read(tensor.scale.name).view("<f4"), "f32")
        outer, values = (read(part.name).view("<f4") for part in nested)
        codes = read(tensor.scale.name)
        size = int(settings["nested_blocksize"])
        inner = values[codes] * np.repeat(outer, size)[: codes.size]
        return finite_scales(inner + np.float32(settings["nested_offset"]), "f32")


class EightBitMatrix:
    """The rows of one matrix of LLM.int8: a MatrixReader. A code times its row's scale is 127 times the element."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale = tensor.scale
        assert scale is not None, "bitsandbytes has scales"
        self.num_rows, self._num_columns = tensor.shape
        self._codes = read(tensor.name).view(np.int8).reshape(tensor.shape)
        self._scales = stored_scales(scale, read, (self.num_rows, 1))
        self._scale_type = scale.storage

    def groups(self, rows: Rows) -> Groups:
        scale = finite_scales(self._scales[rows], self._scale_type) * _ONE_127TH
        return Groups(np.ascontiguousarray(self._codes[rows]), 8, 0, scale, None, self._num_columns)
