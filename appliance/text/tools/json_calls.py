"""Parses calls written as JSON objects, {"name": ..., "arguments": {...}}; most formats have them between markers."""

import json
from collections.abc import Collection

from appliance.text.parsing.json_text import Malformed, json_string, json_value
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import Script, ToolContext
from appliance.text.tools.writer import CallWriter

_ARGUMENTS = ("arguments", "parameters")
_BARE_KEYS = ("name", "type", "id", *_ARGUMENTS)


def call_object(reader: Reader, writer: CallWriter, known: Collection[str] | None = None) -> Reading[None]:
    """Reads one call with its fields in any order; other fields are ignored. Raises Malformed.

    known: for calls without markers. The name must then be one of these, no other field may occur, and arguments must
    be there; without `known` they may be absent.
    """
    if (yield from reader.skip_space()) != "{":
        raise Malformed
    reader.take()
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    if (yield from reader.skip_space()) == "}":
        raise Malformed
    is_started = False
    while True:
        key = yield from _key(reader)
        char = yield from reader.skip_space()
        if known is not None and key not in _BARE_KEYS:
            raise Malformed
        if key == "name" and not is_started:
            name = yield from _name(reader, known)
        elif key == "id" and char == '"':
            call_id = yield from json_string(reader)
        elif key not in _ARGUMENTS or is_started or arguments is not None:
            yield from json_value(reader, _ignore)
        elif name is not None and char == "{":
            writer.start(name, call_id)
            yield from json_value(reader, writer.arguments)
            writer.done()
            is_started = True
        else:
            arguments = yield from _early_arguments(reader, char)
        if not (yield from _goes_on(reader)):
            break
    if is_started:
        writer.settle()
    else:
        if name is None or (known is not None and arguments is None):
            raise Malformed
        writer.whole(name, arguments or "{}", call_id)


def call_array(reader: Reader, writer: CallWriter, known: Collection[str] | None = None) -> Reading[None]:
    """Reads [call, call, ...]. Raises Malformed."""
    if (yield from reader.skip_space()) != "[":
        raise Malformed
    reader.take()
    if (yield from reader.skip_space()) == "]":
        raise Malformed
    while True:
        yield from call_object(reader, writer, known)
        char = yield from reader.skip_space()
        if char not in (",", "]"):
            raise Malformed
        reader.take()
        if char == "]":
            return


def call_object_or_array(reader: Reader, writer: CallWriter, known: Collection[str] | None = None) -> Reading[None]:
    is_array = (yield from reader.skip_space()) == "["
    yield from (call_array if is_array else call_object)(reader, writer, known)


def marked_calls(starts: tuple[str, ...], ends: tuple[str, ...] = ()) -> Script:
    """Makes a script: content, and after each of `starts` a call or an array of calls; `ends` may follow."""
    markers = Markers(*starts, *ends)

    def script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
        while marker := (yield from writer.content_until(markers)):
            if marker in starts:
                yield from writer.attempt(call_object_or_array(reader, writer), marker)
                if writer.is_after_call:
                    yield from reader.skip_space()
            elif not writer.is_after_call:
                writer.content(marker)

    return script


def _key(reader: Reader) -> Reading[str]:
    key = yield from json_string(reader)
    if (yield from reader.skip_space()) != ":":
        raise Malformed
    reader.take()
    return key


def _name(reader: Reader, known: Collection[str] | None) -> Reading[str]:
    name = yield from json_string(reader)
    if not name or (known is not None and name not in known):
        raise Malformed
    return name


def _early_arguments(reader: Reader, char: str) -> Reading[str]:
    """Returns arguments that come before the name: an object, JSON text inside a string, or null."""
    pieces: list[str] = []
    yield from json_value(reader, pieces.append)
    text = "".join(pieces)
    if char == "{":
        return text
    if char == '"':
        inner: str = json.loads(text)
        if _is_object(inner):
            return inner
    if text == "null":
        return "{}"
    raise Malformed


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _goes_on(reader: Reader) -> Reading[bool]:
    """Reads what follows a field. Returns True after a comma, False after the closing brace."""
    char = yield from reader.skip_space()
    if char == ",":
        reader.take()
        yield from reader.skip_space()
        return True
    if char != "}":
        raise Malformed
    reader.take()
    return False


def _ignore(_: str) -> None:
    """Drops the text."""
