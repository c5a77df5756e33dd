"""The activation buffers that operators read and write."""

import enum
from collections.abc import Mapping
from typing import Literal

import msgspec

SlotType = Literal["f32", "bf16", "f16", "int32"]

_TYPE_BYTES: Mapping[SlotType, int] = {"f32": 4, "bf16": 2, "f16": 2, "int32": 4}


class Extent(enum.StrEnum):
    """The number of rows of a slot that are live in a step."""

    TOKENS = "tokens"
    SAMPLED = "sampled"


class Slot(msgspec.Struct, frozen=True):
    """An activation buffer [rows(extent), width]. Binding decides which slots share memory (by liveness).

    base: the slot of which it is the columns from `start` on; None for a buffer of its own.
    """

    index: int
    extent: Extent
    width: int
    dtype: SlotType = "f32"
    base: "Slot | None" = None
    start: int = 0

    @property
    def buffer(self) -> "Slot":
        """The slot whose memory it is in: itself, or its base."""
        return self if self.base is None else self.base

    @property
    def row_bytes(self) -> int:
        return _TYPE_BYTES[self.dtype] * self.width


class Span(msgspec.Struct, frozen=True):
    """Columns [start, start + width) of a slot, by which fused projections are read and written in place."""

    slot: Slot
    start: int
    width: int


def whole(slot: Slot) -> Span:
    """Returns the span of all columns of a slot."""
    return Span(slot, 0, slot.width)
