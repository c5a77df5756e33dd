"""What parsers say: a flat sequence of typed events."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins; calls are numbered from 0. `id` is the model's own where its format has one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: a piece of JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """The call ends. When it is complete, its joined arguments are one JSON object."""

    index: int
    is_complete: bool


Event = ContentDelta | ReasoningDelta | CallStarted | ArgumentsDelta | CallDone


class OutputParser(Protocol):
    """Of one sequence. The events of all feeds and of finish, joined by `merge_events`, do not depend on the cuts."""

    def feed(self, text: str) -> list[Event]:
        """What is certain now."""

    def finish(self) -> list[Event]:
        """What was held back. Nothing is fed afterwards."""


def merge_events(events: Iterable[Event]) -> list[Event]:
    """Neighbours of one kind become one; empty texts go."""
    merged: list[Event] = []
    for kind, group in groupby(events, key=_kind):
        run = list(group)
        first = run[0]
        if kind is None or isinstance(first, CallStarted | CallDone):
            merged += run
        elif text := "".join(each.text for each in run if not isinstance(each, CallStarted | CallDone)):
            merged.append(replace(first, text=text))
    return merged


def _kind(event: Event) -> object:
    if isinstance(event, ArgumentsDelta):
        return ArgumentsDelta, event.index
    return None if isinstance(event, CallStarted | CallDone) else type(event)
