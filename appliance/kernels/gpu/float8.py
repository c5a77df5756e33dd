"""Products of FP8 weights with activations that are rounded to FP8, a scale a token: e4m3 times e4m3."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from appliance.kernels.gpu.matrices import DeviceMatrix, Pack, Rows
from appliance.kernels.gpu.products import by_rows
from appliance.kernels.gpu.weight_stream import WeightStream
from appliance.kernels.layout import CanonicalWeight, Layout

E4M3 = torch.float8_e4m3fn
_LARGEST = 448.0
_LEAST_EXPONENT, _LARGEST_EXPONENT = -100, 100  # of a scale, whose inverse is finite too
_WORD = 4  # codes that kernels of few rows read together
_MULTIPLE = 16  # of which the library wants both sizes of a weight


@dataclass(frozen=True, slots=True)
class Float8Matrix:
    """A matrix as a DeviceMatrix. codes: e4m3 [N, K]; scale: f32 [N, 1], of each row."""

    codes: torch.Tensor
    scale: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes

    def read(self, rows: Rows, dtype: torch.dtype) -> torch.Tensor:
        codes = self.codes.view(torch.uint8)[rows].view(E4M3)
        return (codes.float() * self.scale[rows]).to(dtype)

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        codes = torch.cat([piece.codes.view(torch.uint8) for piece in pieces]).view(E4M3)
        return cls(codes, torch.cat([piece.scale for piece in pieces]))


def float8_matrix(weight: CanonicalWeight, stream: WeightStream) -> Float8Matrix | None:
    """Copies a weight of e4m3 codes with a scale a row to the stream's device; None for any other."""
    has_rows = weight.group_size in (None, weight.in_features) and weight.in_features % _WORD == 0
    if weight.layout is not Layout.F8 or weight.scale is None or not has_rows:
        return None
    codes = stream.put(weight.data.reshape(weight.out_features, weight.in_features)).view(E4M3)
    return Float8Matrix(codes, stream.put(weight.scale.reshape(-1, 1)).float())


def to_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the codes e4m3 [T, K] of x [T, K], and a scale f32 [T, 1] of each row.

    A scale is the least power of two that makes the largest magnitude no more than the largest code. So a rounded
    number is one of bf16 too, and rounding it again changes nothing.
    """
    most = x.abs().amax(-1, keepdim=True).float() / _LARGEST
    fraction, exponent = torch.frexp(most)
    exponent = torch.where(fraction == 0.5, exponent - 1, exponent)
    exponent = torch.where(most == 0, _LEAST_EXPONENT, exponent).clamp(_LEAST_EXPONENT, _LARGEST_EXPONENT)
    scale = torch.ldexp(torch.ones_like(most), exponent)
    return (x.float() / scale).to(E4M3), scale


def product(
    codes: torch.Tensor, scale: torch.Tensor, matrix: Float8Matrix, dtype: torch.dtype, fixed_rows: int = 0
) -> torch.Tensor:
    """Returns x @ weight.T [T, N] of x = codes * scale, in bf16 on a GPU, or else in `dtype`.

    fixed_rows: as in products.by_rows. Scales are powers of two, so multiplying by them later changes no rounding.
    """
    if not fixed_rows:
        return _multiplied(codes, scale, matrix, dtype)

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        return _multiplied(rows.view(E4M3), torch.ones(len(rows), 1, device=rows.device), matrix, dtype)

    found = by_rows(multiply, codes.view(torch.uint8), fixed_rows)
    return found * scale.to(found.dtype)


def _multiplied(codes: torch.Tensor, scale: torch.Tensor, matrix: Float8Matrix, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = matrix.shape
    if rows % _MULTIPLE or columns % _MULTIPLE:
        return (codes.float() * scale).to(dtype) @ matrix.read(slice(None), dtype).T
    kind = torch.bfloat16 if codes.is_cuda else dtype
    found: torch.Tensor = torch._scaled_mm(
        codes, matrix.codes.T, scale, matrix.scale.T, out_dtype=kind, use_fast_accum=codes.is_cuda
    )
    return found


def float8_or(pack: Pack | None) -> Pack:
    """Returns what keeps a float8 matrix as it is, and packs others as `pack` does."""

    def packed(weight: CanonicalWeight, stream: WeightStream) -> DeviceMatrix | None:
        own = float8_matrix(weight, stream)
        return own if own is not None or pack is None else pack(weight, stream)

    return packed
