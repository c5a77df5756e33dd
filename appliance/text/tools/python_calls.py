"""Parses calls written as Python: a list of calls with keyword arguments. Their values are literals and become JSON."""

import re
from collections.abc import Collection

from appliance.text.parsing.json_text import Malformed, Truncated
from appliance.text.parsing.reader import Reader, Reading, Sink
from appliance.text.tools.python_text import python_string
from appliance.text.tools.spelling import ParameterSpelling, Spelling
from appliance.text.tools.writer import CallWriter

MAX_DEPTH = 64  # of nested values

_NAME = re.compile(r"[\w.\-]*")
_WORD = re.compile(r"[A-Za-z]*")
_NUMBER_RUN = re.compile(r"[-+.\w]*", re.ASCII)
_NUMBER = re.compile(r"([-+]?)(\d[\d_]*)?(\.[\d_]*)?([eE][-+]?\d+)?", re.ASCII)
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}

_KEYWORDS = ParameterSpelling(before="", middle="=", separator=", ", has_text=False)


def python_spelling(opening: str = "", closing: str = "") -> Spelling:
    """Returns the spelling that `python_calls` reads. Values are JSON: the parser knows true, false and null too."""
    return Spelling(
        opening=f"{opening}[",
        before="",
        after="(",
        end=")",
        separator=", ",
        closing=f"]{closing}",
        parameters=_KEYWORDS,
    )


def python_calls(reader: Reader, writer: CallWriter, known: Collection[str] | None) -> Reading[None]:
    """Reads [name(key=value, ...), ...]. known: the names that are calls; None takes any. Raises Malformed."""
    yield from _expect(reader, "[")
    if (yield from reader.skip_space()) == "]":
        raise Malformed
    while True:
        yield from _call(reader, writer, known)
        if not (yield from _comma_before(reader, "]")):
            return


def _call(reader: Reader, writer: CallWriter, known: Collection[str] | None) -> Reading[None]:
    name = yield from reader.joined_run(_NAME)
    if not name or (known is not None and name not in known):
        raise Malformed
    yield from _expect(reader, "(")
    if (yield from reader.skip_space()) == ")":
        reader.take()
        writer.whole(name, "{}")
        return
    key = yield from _keyword(reader)
    writer.start(name)
    writer.arguments("{")
    while True:
        writer.arguments(f'"{key}": ')
        yield from _value(reader, writer.arguments, MAX_DEPTH)
        if not (yield from _comma_before(reader, ")")):
            break
        key = yield from _keyword(reader)
        writer.arguments(", ")
    writer.arguments("}")
    writer.done()


def _keyword(reader: Reader) -> Reading[str]:
    key = yield from reader.joined_run(_NAME)
    if (yield from reader.skip_space()) != "=" or not key:
        raise Malformed(key) if (yield from reader.peek()) else Truncated
    reader.take()
    return key


def _value(reader: Reader, sink: Sink, depth: int) -> Reading[None]:
    char = yield from reader.skip_space()
    if char in ("[", "(", "{") and not depth:
        raise Malformed
    if char in ("'", '"'):
        yield from python_string(reader, sink)
    elif char in ("[", "("):
        yield from _list(reader, sink, "]" if char == "[" else ")", depth - 1)
    elif char == "{":
        yield from _dict(reader, sink, depth - 1)
    elif char and char in "-+.0123456789":
        text = yield from reader.joined_run(_NUMBER_RUN)
        sink(_number(text, (yield from reader.peek())))
    else:
        word = yield from reader.joined_run(_WORD)
        if word not in _CONSTANTS:
            raise _wrong((yield from reader.peek()), word)
        sink(_CONSTANTS[word])


def _list(reader: Reader, sink: Sink, closer: str, depth: int) -> Reading[None]:
    reader.take()
    sink("[")
    more = (yield from reader.skip_space()) != closer
    if not more:
        reader.take()
    while more:
        yield from _value(reader, sink, depth)
        more = yield from _comma_before(reader, closer)
        if more:
            sink(", ")
    sink("]")


def _dict(reader: Reader, sink: Sink, depth: int) -> Reading[None]:
    reader.take()
    sink("{")
    more = (yield from reader.skip_space()) != "}"
    if not more:
        reader.take()
    while more:
        if (yield from reader.skip_space()) not in ("'", '"'):
            raise _wrong((yield from reader.peek()))
        yield from python_string(reader, sink)
        yield from _expect(reader, ":")
        sink(": ")
        yield from _value(reader, sink, depth)
        more = yield from _comma_before(reader, "}")
        if more:
            sink(", ")
    sink("}")


def _comma_before(reader: Reader, closer: str) -> Reading[bool]:
    """Reads the separator after an item. Returns True when another follows; the last one may have a comma too."""
    char = yield from reader.skip_space()
    if char == ",":
        reader.take()
        char = yield from reader.skip_space()
        if char != closer:
            return True
    yield from _expect(reader, closer)
    return False


def _number(text: str, following: str) -> str:
    """Writes a Python number as JSON: no plus sign, underscores or leading zeros; digits on both sides of the point."""
    found = _NUMBER.fullmatch(text)
    if not found or not (found[2] or (found[3] or "").strip("._")):
        raise _wrong(following, text)
    sign = "-" if found[1] == "-" else ""
    whole = (found[2] or "0").replace("_", "").lstrip("0") or "0"
    fraction = found[3].replace("_", "") if found[3] else ""
    return sign + whole + (fraction + "0" if fraction == "." else fraction) + (found[4] or "")


def _expect(reader: Reader, wanted: str) -> Reading[None]:
    char = yield from reader.skip_space()
    if char != wanted:
        raise _wrong(char)
    reader.take()


def _wrong(char: str, rest: str = "") -> Malformed:
    return Malformed(rest) if char else Truncated(rest)
