"""Gemma 4: `<|tool_call>call:name{key:value,key:value}<tool_call|>`.

Keys are bare. A text stands between two `<|"|>` and has no escapes; lists and objects hold values of the same form;
numbers, true, false and null are those of JSON.
"""

import json
import re
from typing import Final

from appliance.text.parsing.json_text import Malformed, Truncated, json_string, literal
from appliance.text.parsing.reader import Markers, Reader, Reading, Sink
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.writer import CallWriter

MAX_DEPTH: Final = 64  # of nested values
_CALL, _CALL_END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_MARKERS = Markers(_CALL, _CALL_END)
_TEXT_END = Markers(_QUOTE)
_NAME = re.compile(r"[\w.\-]*")
_KEY = re.compile(r"[^:,{}\[\]<>\"\n]*")
_WORD = re.compile(r"[\w.+\-]*", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_CONSTANTS = {"true": "true", "false": "false", "null": "null", "None": "null"}  # the template writes None


def _script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    while marker := (yield from writer.content_until(_MARKERS)):
        if marker == _CALL:
            yield from writer.attempt(_call(reader, writer), marker)
        elif not writer.is_after_call:
            writer.content(marker)


def _call(reader: Reader, writer: CallWriter) -> Reading[None]:
    yield from reader.skip_space()
    yield from literal(reader, "call:")
    name = yield from reader.joined_run(_NAME)
    if not name or (yield from reader.skip_space()) != "{":
        raise Malformed if (yield from reader.peek()) else Truncated
    writer.start(name)
    yield from _object(reader, writer.arguments, MAX_DEPTH)
    writer.done()


def _value(reader: Reader, sink: Sink, depth: int) -> Reading[None]:
    char = yield from reader.skip_space()
    if char in ("[", "{") and not depth:
        raise Malformed
    if char == "<":
        yield from _text(reader, sink)
    elif char == '"':
        sink(_as_json((yield from json_string(reader))))
    elif char == "[":
        yield from _list(reader, sink, depth - 1)
    elif char == "{":
        yield from _object(reader, sink, depth - 1)
    else:
        word = yield from reader.joined_run(_WORD)
        if word not in _CONSTANTS and not _NUMBER.fullmatch(word):
            raise Malformed(word) if (yield from reader.peek()) else Truncated(word)
        sink(_CONSTANTS.get(word, word))


def _text(reader: Reader, sink: Sink) -> Reading[None]:
    """Passes a text on while it comes."""
    yield from literal(reader, _QUOTE)
    sink('"')
    if not (yield from reader.until(_TEXT_END, lambda text: sink(_as_json(text)[1:-1]))):
        raise Truncated
    sink('"')


def _list(reader: Reader, sink: Sink, depth: int) -> Reading[None]:
    reader.take()
    sink("[")
    before = ""
    while (yield from reader.skip_space()) != "]":
        yield from _comma(reader, before)
        sink(before)
        yield from _value(reader, sink, depth)
        before = ", "
    reader.take()
    sink("]")


def _object(reader: Reader, sink: Sink, depth: int) -> Reading[None]:
    reader.take()
    sink("{")
    before = ""
    while (yield from reader.skip_space()) != "}":
        yield from _comma(reader, before)
        key = yield from _key(reader)
        sink(f"{before}{_as_json(key)}: ")
        yield from _value(reader, sink, depth)
        before = ", "
    reader.take()
    sink("}")


def _comma(reader: Reader, before: str) -> Reading[None]:
    """Reads the comma that an item needs which is not the first. Raises Malformed."""
    if before:
        yield from literal(reader, ",")


def _key(reader: Reader) -> Reading[str]:
    char = yield from reader.skip_space()
    if char == "<":
        yield from literal(reader, _QUOTE)
        pieces: list[str] = []
        if not (yield from reader.until(_TEXT_END, pieces.append)):
            raise Truncated
        key = "".join(pieces)
    elif char == '"':
        key = yield from json_string(reader)
    else:
        key = (yield from reader.joined_run(_KEY)).strip()
    if (yield from reader.skip_space()) != ":" or not key:
        raise Malformed(key) if (yield from reader.peek()) else Truncated
    reader.take()
    return key


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


GEMMA4 = ToolFormat(name="gemma4", script=_script, special_tokens=(_CALL, _CALL_END, _QUOTE))
