"""Matrices as torchao stores them: its formulas and names, of the plain tensor subclasses of version 0.18."""

from typing import Literal

import torch

from tests.models.stored.scheme import Packed, Scheme

CONFIG = {"quant_method": "torchao"}


def torchao(kind: Literal["int8", "e4m3", "intx4"], group: int | None = None, *, symmetric: bool = True) -> Scheme:
    """kind: codes of Int8Tensor, Float8Tensor or, of 4 bits in a byte, IntxUnpackedToInt8Tensor. group: columns that
    share a scale; None for a row. symmetric: zero points are there all the same, and are 0."""

    def pack(matrix: torch.Tensor) -> Packed:
        groups = matrix.reshape(len(matrix), -1, group or matrix.shape[1])
        if kind == "e4m3":
            scale = groups.abs().amax(-1, keepdim=True) / 448.0
            codes = (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            parts = {"_weight_qdata": codes.reshape(matrix.shape), "_weight_scale": scale.squeeze(-1)}
            return parts, (codes.float() * scale).reshape(matrix.shape)
        low, high = (-128, 127) if kind == "int8" else (-8, 7)
        scale = groups.abs().amax(-1, keepdim=True) / (high + 0.5)
        zero = torch.zeros_like(scale) if symmetric else (groups.mean(-1, keepdim=True) / scale * -4).round()
        codes = ((groups / scale).round() + zero).clamp(low, high)
        parts = {
            "_weight_qdata": codes.to(torch.int8).reshape(matrix.shape),
            "_weight_scale": scale.squeeze(-1),
            "_weight_zero_point": zero.to(torch.int8).squeeze(-1),
        }
        return parts, ((codes - zero) * scale).reshape(matrix.shape)

    size = "channel" if group is None else f"g{group}"
    storage = f"f8_{size}" if kind == "e4m3" else f"int8_{size}{'' if symmetric else '_zp'}"
    return Scheme(CONFIG, storage, pack)
