"""Quantized weights as kernels read them: codes in 32-bit words, with the scales and offsets of the canonical layout.

A row is cut into units of U columns, the largest power of two up to 128 that divides its (sub-)groups. A word holds
C = 32 / bits codes of one unit: code j of its word i, lowest bits first, is column (U / C) * j + i of the unit. So
words that lie together need inputs that lie together, and all codes of a word share a scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import torch

from appliance.kernels.codes import CODE_VALUES
from appliance.kernels.layout import BOOK_LAYOUTS, PAIRED_LAYOUTS, CanonicalWeight, Layout

INTEGERS, E2M1, BOOK, E4M3 = range(4)  # how a code becomes a number
_LARGEST_UNIT: Final = 128


class PackingError(ValueError):
    """A weight has no packed form here."""


@dataclass(frozen=True, slots=True)
class PackedQuantized:
    """A quantized matrix [out_features, in_features]; its numbers are those of the canonical weight, exactly.

    words: int32 [N, K * bits / 32]. scale, offset: f16, f32, or uint8 (e8m0) [N, K / group_size]. sub_scale,
    sub_offset: int8 [N, K / sub_group_size]. book: f32 [16], of a layout that has one. bias: what a code is more than
    its number. unit: U.
    """

    out_features: int
    in_features: int
    bits: int
    kind: int
    bias: int
    unit: int
    group_size: int
    sub_group_size: int
    words: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    sub_scale: torch.Tensor | None
    sub_offset: torch.Tensor | None
    book: torch.Tensor | None

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def to(self, device: torch.device | str) -> "PackedQuantized":
        """Returns a copy whose tensors are on a device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "PackedQuantized":
        """Returns the same matrix of the tensors that `move` makes of its own."""
        own: dict[str, Any] = {name: move(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **own)

    def rows(self, start: int, stop: int) -> "PackedQuantized":
        """Returns rows [start, stop), of the same memory."""
        own = {name: tensor[start:stop] for name, tensor in self._tensors().items() if name != "book"}
        return replace(self, out_features=stop - start, **own)

    @classmethod
    def joined(cls, pieces: "Sequence[PackedQuantized]") -> "PackedQuantized":
        """Returns the matrix whose rows are those of the pieces, one after the other."""
        first = pieces[0]
        own: dict[str, Any] = {
            name: torch.cat([getattr(piece, name) for piece in pieces]) for name in first._tensors() if name != "book"
        }
        return replace(first, out_features=sum(piece.out_features for piece in pieces), **own)

    def _tensors(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def pack(weight: CanonicalWeight) -> PackedQuantized:
    """Packs a quantized weight. Raises PackingError for a dense one, and for groups that cut through words."""
    if weight.scale is None or not weight.group_size:
        raise PackingError(f"a weight of layout {weight.layout} has no codes to pack")
    bits = 4 if weight.layout in PAIRED_LAYOUTS else 8
    unit = _unit(weight.sub_group_size or weight.group_size, bits)
    is_book = weight.layout in BOOK_LAYOUTS and weight.layout is not Layout.E2M1
    return PackedQuantized(
        weight.out_features, weight.in_features, bits, _kind(weight.layout), 128 if weight.layout is Layout.INT8 else 0,
        unit, weight.group_size, weight.sub_group_size or weight.group_size, _words(_codes(weight), bits, unit),
        _tensor(weight.scale, weight), _optional(weight.offset, weight), _optional(weight.sub_scale, weight),
        _optional(weight.sub_offset, weight), torch.from_numpy(CODE_VALUES[weight.layout]) if is_book else None,
    )  # fmt: skip


def _unit(group_size: int, bits: int) -> int:
    unit = min(_LARGEST_UNIT, group_size & -group_size)  # the largest power of two that divides it
    if unit < 32 // bits:
        raise PackingError(f"groups of {group_size} columns are no multiple of the {32 // bits} codes of a word")
    return unit


def _kind(layout: Layout) -> int:
    if layout is Layout.F8:
        return E4M3
    if layout is Layout.E2M1:
        return E2M1
    return BOOK if layout in BOOK_LAYOUTS else INTEGERS


def _codes(weight: CanonicalWeight) -> np.ndarray:
    """Returns uint8 [N, K], signed ones shifted to 0..255."""
    if weight.layout in PAIRED_LAYOUTS:
        return np.stack((weight.data & 15, weight.data >> 4), axis=-1).reshape(weight.out_features, -1)
    return weight.data.view(np.uint8) ^ 128 if weight.layout is Layout.INT8 else weight.data


def _words(codes: np.ndarray, bits: int, unit: int) -> torch.Tensor:
    count = 32 // bits
    parts = codes.reshape(len(codes), -1, count, unit // count).astype(np.uint32)
    words = np.zeros((len(codes), parts.shape[1], unit // count), np.uint32)
    for place in range(count):
        words |= parts[:, :, place] << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32).reshape(len(codes), -1))


def _tensor(values: np.ndarray, weight: CanonicalWeight) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).reshape(weight.out_features, -1))


def _optional(values: np.ndarray | None, weight: CanonicalWeight) -> torch.Tensor | None:
    return None if values is None else _tensor(values, weight)
