"""A quantized matrix in the words that Triton's kernels multiply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from appliance.kernels.gpu.float8 import Float8Matrix
from appliance.kernels.gpu.matrices import Rows
from appliance.kernels.gpu.triton.packing import E4M3, PackedQuantized, PackingError, pack
from appliance.kernels.gpu.triton.quantized import dequantize
from appliance.kernels.gpu.weight_stream import WeightStream
from appliance.kernels.layout import CanonicalWeight


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """The matrix as a DeviceMatrix."""

    packed: PackedQuantized

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.out_features, self.packed.in_features

    @property
    def nbytes(self) -> int:
        return self.packed.size_bytes

    def read(self, rows: Rows, dtype: torch.dtype) -> torch.Tensor:
        """Dequantizes the given rows into memory of their own."""
        weight, ids = self.packed, None
        if isinstance(rows, torch.Tensor):
            count, ids = len(rows), rows
        else:
            start, stop, _ = rows.indices(weight.out_features)
            weight, count = weight.rows(start, stop), stop - start
        out = torch.empty(count, weight.in_features, dtype=dtype, device=weight.words.device)
        dequantize(weight, out, ids)
        return out

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        return cls(PackedQuantized.joined([piece.packed for piece in pieces]))


def packed_float8(matrix: Float8Matrix) -> PackedQuantized:
    """Returns the same memory as kernels of few rows read it: words of four neighbouring codes."""
    rows, columns = matrix.shape
    words = matrix.codes.view(torch.int32)
    return PackedQuantized(rows, columns, 8, E4M3, 0, 4, columns, columns, words, matrix.scale, None, None, None, None)


def packed_matrix(weight: CanonicalWeight, stream: WeightStream) -> PackedMatrix | None:
    """Packs a quantized weight; None for what has no packed form, which is then kept as it is."""
    try:
        return PackedMatrix(pack(weight).moved(stream.moved))
    except PackingError:
        return None
