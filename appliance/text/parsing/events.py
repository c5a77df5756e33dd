"""The events of parsers: a flat sequence of typed records."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins; calls are numbered from 0. `id` is the model's own if its format has one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """The call ends. When it is complete, its joined arguments are one JSON object."""

    index: int
    is_complete: bool


Event = ContentDelta | ReasoningDelta | CallStarted | ArgumentsDelta | CallDone


class OutputParser(Protocol):
    """Parses one sequence. The events of all calls, joined by `merge_events`, do not depend on the cuts of the text."""

    def feed(self, text: str) -> list[Event]:
        """Takes the next piece of text, and returns the events that are certain now."""

    def finish(self) -> list[Event]:
        """Ends the text, and returns the events that were held back. Nothing may be fed afterwards."""


def merge_events(events: Iterable[Event]) -> list[Event]:
    """Joins neighbouring events of one kind, and drops empty texts."""
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
