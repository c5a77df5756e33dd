"""Reads one Python string literal, and passes it on as a JSON string while it comes."""

import json
import re

from appliance.text.parsing.json_text import Truncated
from appliance.text.parsing.reader import Reader, Reading, Sink

_PLAIN = re.compile(r"""[^"'\\\x00-\x1f]*""")
_HEX = re.compile(r"[0-9a-fA-F]")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def python_string(reader: Reader, sink: Sink) -> Reading[None]:
    """Reads the literal that begins here, with one quote or three. Raises Truncated."""
    quote = yield from reader.peek()
    reader.take()
    sink('"')
    length = 1
    if (yield from reader.peek()) == quote:
        reader.take()
        if (yield from reader.peek()) != quote:
            sink('"')  # the empty string
            return
        reader.take()
        length = 3
    num_quotes = 0
    while num_quotes < length:
        char = yield from reader.peek()
        if char == quote:
            reader.take()
            num_quotes += 1
            continue
        sink(_as_json(quote) * num_quotes)
        num_quotes = 0
        if not char:
            raise Truncated
        yield from _text(reader, char, sink)
    sink('"')


def _text(reader: Reader, char: str, sink: Sink) -> Reading[None]:
    if char == "\\":
        reader.take()
        yield from _escape(reader, sink)
    elif char in "\"'" or char < " ":
        reader.take()
        sink(_as_json(char))
    else:
        yield from reader.run(_PLAIN, sink)


def _escape(reader: Reader, sink: Sink) -> Reading[None]:
    """Reads the escape after a backslash. As in Python, a backslash that begins no escape stands for itself."""
    char = yield from reader.peek()
    if not char:
        raise Truncated("\\\\")
    if char in "\\\"'":
        reader.take()
        sink(_as_json(char))
    elif char in _SIMPLE:
        reader.take()
        sink(_as_json(_SIMPLE[char]))
    elif char in _HEX_DIGITS:
        reader.take()
        yield from _code_point(reader, char, sink)
    else:
        sink("\\\\")


def _code_point(reader: Reader, kind: str, sink: Sink) -> Reading[None]:
    digits = ""
    while len(digits) < _HEX_DIGITS[kind] and _HEX.match((yield from reader.peek())):
        digits += yield from reader.peek()
        reader.take()
    is_whole = len(digits) == _HEX_DIGITS[kind] and int(digits, 16) <= 0x10FFFF
    if not is_whole:
        sink(_as_json("\\" + kind + digits))
    elif kind == "u":
        sink("\\u" + digits)  # may be half of a surrogate pair
    else:
        sink(_as_json(chr(int(digits, 16))))


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
