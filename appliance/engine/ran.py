"""A step whose model ran, between the runner's preparing it and its sampling."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from appliance.engine.inputs import LogitRows
from appliance.engine.rows import Int32
from appliance.engine.step import Moved, RowError, StepPlan


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that began early. places: its rows that count; None: all."""

    places: Int32 | None = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ran(Generic[T]):
    """A step whose model ran, or has begun to, with the chunks that it ran for, and what that gave: logits, or the
    number by which they are had."""

    plan: StepPlan
    wanted: LogitRows
    logits: T
    begun: Begun | None


class BegunStep(NamedTuple):
    """A step that has begun, and what is known of its rows."""

    plan: StepPlan
    failed: dict[int, RowError]
    ran: Ran[int] | None
    moved: Moved | None = None  # what was moved before it, if anything
