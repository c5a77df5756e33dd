"""Cuts a program into segments that can be captured as graphs, and what runs between them."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from appliance.kernels.gpu.operators.table import Run
from appliance.program.operators import GatherRows, Operator
from appliance.program.slots import Extent

Call = tuple[Run, Operator]


class Segment(NamedTuple):
    """Operators that follow each other. extent: the rows whose number decides the kernels of a graph; None if the
    operators are not captured."""

    calls: tuple[Call, ...]
    extent: Extent | None


def cut(calls: Sequence[Call], can_capture: Callable[[Run, Operator], bool]) -> tuple[Segment, ...]:
    """Returns the segments. From the first operator on that has rows of sampled tokens, segments are captured by the
    number of these, if no later one computes all tokens."""
    first = next((at for at, (_, op) in enumerate(calls) if _has_sampled(op)), len(calls))
    head = _cut(calls[:first], can_capture, Extent.TOKENS)
    is_separate = all(isinstance(op, GatherRows) or not _has_tokens(op) for _, op in calls[first:])
    return (*head, *_cut(calls[first:], can_capture, Extent.SAMPLED if is_separate else None))


def _cut(
    calls: Sequence[Call], can_capture: Callable[[Run, Operator], bool], extent: Extent | None
) -> tuple[Segment, ...]:
    parts = groupby(calls, lambda call: extent is not None and can_capture(*call))
    return tuple(Segment(tuple(part), extent if is_captured else None) for is_captured, part in parts)


def _has_sampled(op: Operator) -> bool:
    return any(slot.extent is Extent.SAMPLED for slot in op.slots())


def _has_tokens(op: Operator) -> bool:
    return any(slot.extent is Extent.TOKENS for slot in op.slots())
