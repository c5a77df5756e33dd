"""Canonical weight layouts: the few forms in which weights reach kernels, whatever format they were stored in.

A dequantized element is `q * scale + offset`, with one scale (and offset) for each row and group of `group_size`
columns. If a group has sub-groups, it is `q * scale * sub_scale + offset * sub_offset`, with one integer sub_scale and
sub_offset for every sub-group of `sub_group_size` columns.
"""

import enum
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


class Layout(enum.StrEnum):
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    INT8 = "int8"  # per channel (group_size == in_features) or grouped; optional offset
    INT4 = "int4"  # grouped; two values a byte, low nibble first; optional offset
    INT5 = "int5"  # in groups of a multiple of 32 columns; one value a byte; optional offset
    INT6 = "int6"  # in groups of a multiple of 16 columns; one value a byte; optional offset


@dataclass(frozen=True, slots=True)
class CanonicalWeight:
    """A matrix of `out_features` rows (N) and `in_features` columns (K), or a vector when N is 1.

    data: f32 [N, K]; f16 [N, K]; bf16 as uint16 [N, K]; int8 [N, K] signed; int4 as uint8 [N, K/2], values 0..15; int5
        and int6 as uint8 [N, K], values 0..31 and 0..63.
    scale, offset: float16 or float32 [N, K/group_size]; None for dense layouts; offset is None if it is zero.
    sub_scale, sub_offset: int8 [N, K/sub_group_size], for int4, int5 and int6 in groups of 256 with sub-groups of 32,
        or of 16 (int4 and int6); else None. sub_offset is None if offset is.
    """

    layout: Layout
    out_features: int
    in_features: int
    data: np.ndarray
    scale: np.ndarray | None = None
    offset: np.ndarray | None = None
    group_size: int | None = None
    sub_scale: np.ndarray | None = None
    sub_offset: np.ndarray | None = None
    sub_group_size: int | None = None


INTEGER_LAYOUTS = (Layout.INT8, Layout.INT4, Layout.INT5, Layout.INT6)


class WeightPieces(Mapping[str, CanonicalWeight]):
    """Weights that can also be read in pieces, so that a large one is never in memory as a whole."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, int]:
        """Returns (N, K) of a matrix."""

    @abstractmethod
    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        """Returns rows [start, stop) of a matrix, equal to those of the whole. Safe to call from several threads."""
