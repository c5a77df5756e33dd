"""Reads argument values between tags: plain text, whose type only the tool's schema knows. They become JSON."""

import json
from collections.abc import Mapping
from typing import Any

from appliance.text.parsing.json_text import Malformed, Truncated
from appliance.text.parsing.reader import Markers, Reader, Reading, Sink
from appliance.text.tools.format import Schema


def read_value(reader: Reader, end: Markers, schema: Schema, name: str, sink: Sink) -> Reading[None]:
    """Reads the value of the argument `name` up to its end tag. schema: the schema of all arguments.

    A text is passed on while it comes. A value of any other type is read as JSON, or as text if it is not JSON. One
    line break at either end is layout.
    """
    if is_text(_schema_of(schema, name)):
        sink('"')
        trimmed = _Trimmed(lambda text: sink(json.dumps(text, ensure_ascii=False)[1:-1]))
        found = yield from reader.until(end, trimmed.push)
        if not found:
            trimmed.rest()
            raise Truncated
        sink('"')
        return
    pieces: list[str] = []
    found = yield from reader.until(end, pieces.append)
    text = "".join(pieces)
    if not found:
        raise Truncated(text.strip())
    sink(_as_json(text.removeprefix("\n").removesuffix("\n")))


def read_tag(reader: Reader) -> Reading[str]:
    """Returns the inside of the next tag, after white space. Raises Malformed."""
    char = yield from reader.skip_space()
    if char != "<":
        raise Malformed if char else Truncated
    reader.take()
    pieces: list[str] = []
    if not (yield from reader.until(_TAG_END, pieces.append)):
        raise Truncated
    return "".join(pieces)


_TAG_END = Markers(">")


class _Trimmed:
    """Passes text on without one line break at either end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._is_first = True
        self._held = ""

    def push(self, text: str) -> None:
        if self._is_first and text:
            self._is_first = False
            text = text.removeprefix("\n")
        if not text:
            return
        held, self._held = self._held, "\n" if text.endswith("\n") else ""
        self._sink(held + text.removesuffix("\n"))

    def rest(self) -> None:
        self._sink(self._held)


def _schema_of(schema: Schema, name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def is_text(schema: Any) -> bool:
    """Returns whether the schema allows only text; also True for an argument without a schema."""
    if not isinstance(schema, Mapping):
        return True
    if "type" in schema:
        return schema["type"] in ("string", ["string"])
    values = schema.get("enum")
    if isinstance(values, list):
        return all(isinstance(value, str) for value in values)
    return not any(name in schema for name in ("anyOf", "oneOf", "allOf", "$ref", "const"))


def _as_json(text: str) -> str:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
