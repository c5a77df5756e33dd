"""Runs a format over pieces of text, and reads the events."""

import importlib

from appliance.catalog.parsers import TOOL_PARSERS, find_parser
from appliance.text.parsing.events import ArgumentsDelta, CallDone, CallStarted, ContentDelta, Event, merge_events
from appliance.text.parsing.script import ScriptParser
from appliance.text.tools.format import ToolContext, ToolFormat

from .cases import SCHEMAS


def new_parser(name: str) -> ScriptParser:
    entry = find_parser(TOOL_PARSERS, name)
    assert entry is not None
    module, attribute = entry.path.split(":")
    form: ToolFormat = getattr(importlib.import_module(module), attribute)
    assert form.name == entry.name
    return form.new_parser(ToolContext(SCHEMAS))


def parse(name: str, pieces: list[str]) -> list[Event]:
    parser = new_parser(name)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merge_events(events + parser.finish())


def content_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ContentDelta))


def calls_of(events: list[Event]) -> tuple[tuple[str, str], ...]:
    names = [event.name for event in events if isinstance(event, CallStarted)]
    texts = ["" for _ in names]
    for event in events:
        if isinstance(event, ArgumentsDelta):
            texts[event.index] += event.text
        if isinstance(event, CallDone) and not event.is_complete:
            names[event.index] += "!"
    return tuple(zip(names, texts, strict=True))
