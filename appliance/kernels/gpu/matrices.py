"""Weights on the device: matrices in the layout that was planned, read as floats; vectors in f32."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch

from appliance.kernels.codes import CODE_VALUES
from appliance.kernels.gpu.weight_stream import WeightStream
from appliance.kernels.layout import CODED_LAYOUTS, PAIRED_LAYOUTS, CanonicalWeight, Layout, WeightPieces

Rows = slice | torch.Tensor

PIECE_BYTES = 1 << 26  # of a matrix, read from the checkpoint and copied to the device at once


class DeviceMatrix(Protocol):
    """A matrix [N, K] on the device."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def read(self, rows: Rows, dtype: torch.dtype) -> torch.Tensor:
        """Returns the given rows as floats [rows, K]. The result may be the memory itself: nobody writes to it."""

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        """Returns the matrix whose rows are those of the pieces, one after the other."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """values: f32, bf16 or f16 [N, K]."""

    values: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def read(self, rows: Rows, dtype: torch.dtype) -> torch.Tensor:
        return self.values[rows].to(dtype)

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        return cls(torch.cat([piece.values for piece in pieces]))


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix of codes, in the arrays of CanonicalWeight. book: f32, the value of each code; None for integers."""

    layout: Layout
    columns: int
    group_size: int
    sub_group_size: int | None
    data: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    sub_scale: torch.Tensor | None
    sub_offset: torch.Tensor | None
    book: torch.Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.columns

    @property
    def nbytes(self) -> int:
        parts = (self.data, self.scale, self.offset, self.sub_scale, self.sub_offset)
        return sum(part.nbytes for part in parts if part is not None)

    def read(self, rows: Rows, dtype: torch.dtype) -> torch.Tensor:
        """Dequantizes in f32 (the formula is that of kernels.layout), and rounds once."""
        codes = _unpaired(self.data[rows]) if self.layout in PAIRED_LAYOUTS else self.data[rows]
        values = codes.float() if self.book is None else self.book[codes.int()]
        grouped = values.reshape(len(codes), -1, self.sub_group_size or self.group_size)
        result = grouped * _factors(self.scale[rows], None if self.sub_scale is None else self.sub_scale[rows])
        if self.offset is not None:
            result += _factors(self.offset[rows], None if self.sub_offset is None else self.sub_offset[rows])
        return result.reshape(len(codes), self.columns).to(dtype)

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        return replace(
            pieces[0],
            data=torch.cat([piece.data for piece in pieces]),
            scale=torch.cat([piece.scale for piece in pieces]),
            offset=_together([piece.offset for piece in pieces]),
            sub_scale=_together([piece.sub_scale for piece in pieces]),
            sub_offset=_together([piece.sub_offset for piece in pieces]),
        )


def _unpaired(data: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K / 2], the low nibble first -> uint8 [N, K]."""
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(1)


def _factors(scale: torch.Tensor, sub_scale: torch.Tensor | None) -> torch.Tensor:
    """Returns f32 [N, groups, 1]; of sub-groups if they have factors of their own. uint8 scales are e8m0."""
    scales = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
    if sub_scale is None:
        return scales[..., None]
    fine = scales[..., None] * sub_scale.float().reshape(*scales.shape, -1)
    return fine.reshape(len(scales), -1, 1)


_DENSE = {Layout.F32: torch.float32, Layout.F16: torch.float16, Layout.BF16: torch.bfloat16}


Pack = Callable[[CanonicalWeight, WeightStream], DeviceMatrix | None]


def load_matrix(
    name: str, weights: Mapping[str, CanonicalWeight], stream: WeightStream, pack: Pack | None = None
) -> DeviceMatrix:
    """Copies a matrix to the stream's device, piece by piece where the weights can be read so.

    pack: makes the form that kernels want of a quantized one, or returns None for what it has no form for.
    """
    if not isinstance(weights, WeightPieces):
        return _placed(weights[name], stream, pack)
    rows, columns = weights.shape(name)
    step = max(1, PIECE_BYTES // max(1, 4 * columns))
    starts = range(0, rows, step)
    pieces = [_placed(weights.piece(name, start, min(start + step, rows)), stream, pack) for start in starts]
    return pieces[0] if len(pieces) == 1 else type(pieces[0]).joined(pieces)


def load_vector(weight: CanonicalWeight, stream: WeightStream) -> torch.Tensor:
    """Copies a vector or table, f32 [N, K], to the stream's device."""
    return stream.put(weight.data.astype(np.float32)).reshape(weight.out_features, weight.in_features)


def _placed(weight: CanonicalWeight, stream: WeightStream, pack: Pack | None) -> DeviceMatrix:
    if weight.layout in _DENSE:
        data = weight.data.view(np.int16) if weight.layout is Layout.BF16 else weight.data
        values = stream.put(data).view(_DENSE[weight.layout])
        return DenseMatrix(values.reshape(weight.out_features, weight.in_features))
    packed = None if pack is None else pack(weight, stream)
    if packed is not None:
        return packed
    assert weight.scale is not None, "codes have scales"
    assert weight.group_size is not None, "codes have groups"
    offset, sub_scale, sub_offset = (
        None if part is None else stream.put(part.reshape(weight.out_features, -1))
        for part in (weight.offset, weight.sub_scale, weight.sub_offset)
    )
    book = stream.put(CODE_VALUES[weight.layout]) if weight.layout in CODED_LAYOUTS else None
    codes, scale = (stream.put(part.reshape(weight.out_features, -1)) for part in (weight.data, weight.scale))
    sizes = (weight.layout, weight.in_features, weight.group_size, weight.sub_group_size)
    return QuantizedMatrix(*sizes, codes, scale, offset, sub_scale, sub_offset, book)


def _together(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given) if given else None
