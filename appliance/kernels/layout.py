"""Canonical weight layouts: the few forms in which weights reach kernels, whatever format they were stored in.

A dequantized element is `q * scale + offset`, with one scale (and offset) for each row and group of `group_size`
columns; in layouts of codes that stand for floats, q is the value of the code. If a group has sub-groups, it is
`q * scale * sub_scale + offset * sub_offset`, with one integer sub_scale and sub_offset for every sub-group of
`sub_group_size` columns.
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
    F8 = "f8"  # codes of e4m3, a scale a row or group
    E2M1 = "e2m1"  # and so on: codes of 4 bits, two a byte, low nibble first, that choose a value of the layout's book
    NF4 = "nf4"
    FP4 = "fp4"
    IQ4_NL = "iq4_nl"


@dataclass(frozen=True, slots=True)
class CanonicalWeight:
    """A matrix of `out_features` rows (N) and `in_features` columns (K), or a vector when N is 1.

    data: f32 [N, K]; f16 [N, K]; bf16 as uint16 [N, K]; int8 [N, K] signed; int4 as uint8 [N, K/2], values 0..15; int5
        and int6 as uint8 [N, K], values 0..31 and 0..63; f8 as uint8 [N, K]; codes of a book as int4.
    scale, offset: float16 or float32 [N, K/group_size]; None for dense layouts; offset is None if it is zero. Of codes
        of a book also uint8: e8m0, powers of two.
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
BOOK_LAYOUTS = (Layout.E2M1, Layout.NF4, Layout.FP4, Layout.IQ4_NL)
CODED_LAYOUTS = (Layout.F8, *BOOK_LAYOUTS)  # codes that stand for floats
# Multiplied with rounded activations where a plan rounds them: integers, and codes that stand for a unit's multiples.
ROUNDED_INPUT_LAYOUTS = (*INTEGER_LAYOUTS, Layout.E2M1, Layout.IQ4_NL)
PAIRED_LAYOUTS = (Layout.INT4, *BOOK_LAYOUTS)  # two codes a byte


class WeightPieces(Mapping[str, CanonicalWeight]):
    """Weights that can also be read in pieces, so that a large one is never in memory as a whole."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, int]:
        """Returns (N, K) of a matrix."""

    @abstractmethod
    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        """Returns rows [start, stop) of a matrix, equal to those of the whole. Safe to call from several threads."""
