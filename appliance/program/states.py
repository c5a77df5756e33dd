"""Recurrent states: what a block keeps of a sequence whose size does not grow, and the operators that carry it on.

States lie in slots, numbered alike for all states of a program. A step says for each piece of a sequence in which slot
its state is, and in which it is to be left (kernels.interface.StatePieces); a sequence begins with zeros.
"""

import math

import msgspec

from appliance.program.record import ActivationKind, Record
from appliance.program.slots import Span


class StateShape(msgspec.Struct, frozen=True):
    """The f32 array that a block keeps of each sequence."""

    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return 4 * math.prod(self.shape)


class ShortConv(Record, frozen=True):
    """out[t] = kind(bias + sum over j < K of weight[:, j] * x[t - K + 1 + j]): each column's last K inputs, the latest
    weighted last; before a sequence's first token they are zero.

    x, out: [T, C]. weight: f32 [C * K], one column after the other. bias: f32 [C]. State number `state` is [K - 1, C],
    the latest inputs, the last of them last.
    """

    doc = "short causal convolution of each column"
    vectors = ("weight", "bias")
    touches_cache = True

    x: Span
    weight: str
    out: Span
    state: int
    kernel_size: int
    bias: str | None = None
    kind: ActivationKind | None = None
