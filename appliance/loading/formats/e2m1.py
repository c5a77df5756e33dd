"""Reads matrices of e2m1 codes, two a byte, low nibble first: MXFP4 and NVFP4.

MXFP4 has a scale of e8m0 for 32 columns. NVFP4 has one of e4m3 for 16, which a scale of the whole matrix multiplies
(modelopt) or divides (compressed-tensors).
"""

import numpy as np

from appliance.checkpoint.facts import TensorFacts
from appliance.kernels.codes import CODE_VALUES
from appliance.loading.formats.coded import Coded, checked_e4m3, checked_e8m0, nibbles
from appliance.loading.formats.matrices import Read, Rows, finite_scales, stored_scales


class MicroscalingMatrix:
    """The rows of one matrix of MXFP4: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale = tensor.scale
        assert scale is not None, "MXFP4 has scales"
        rows, columns = tensor.shape
        self.num_rows, num_columns = (columns, rows) if tensor.is_transposed else (rows, columns)
        self._codes = read(tensor.name).reshape(self.num_rows, num_columns // 2)
        self._scales = read(scale.name).reshape(self.num_rows, num_columns // 32)

    def groups(self, rows: Rows) -> Coded:
        return Coded("e2m1", nibbles(self._codes[rows]), checked_e8m0(self._scales[rows]), 32)


class NvMatrix:
    """The rows of one matrix of NVFP4: a MatrixReader."""

    def __init__(self, tensor: TensorFacts, read: Read) -> None:
        scale = tensor.scale
        assert scale is not None, "NVFP4 has scales"
        self.num_rows, num_columns = tensor.shape
        self._codes = read(tensor.name).reshape(self.num_rows, num_columns // 2)
        self._scales = read(scale.name).reshape(self.num_rows, num_columns // 16)
        (whole,) = tensor.more
        self._factor = finite_scales(stored_scales(whole, read, (1,)), whole.storage)
        self._divides = tensor.packing == "nvfp4_inverse"

    def groups(self, rows: Rows) -> Coded:
        scale = CODE_VALUES["f8"][checked_e4m3(self._scales[rows])]
        scale = scale / self._factor if self._divides else scale * self._factor
        return Coded("e2m1", nibbles(self._codes[rows]), finite_scales(np.asarray(scale), "f32"), 16)
