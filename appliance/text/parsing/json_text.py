"""Reads one JSON value from a Reader, checks each character (RFC 8259) and passes it on unchanged.

Two mistakes that models make are repaired, so that the text stays JSON: a raw control character inside a string is
escaped, and a backslash that begins no escape is doubled. Anything else that is not JSON raises Malformed.
"""

import json
import re

from appliance.text.parsing.reader import SPACE, Reader, Reading, Sink

MAX_DEPTH = 512  # of nested values; Python's own decoder ends near 1,000

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NUMBER_RUN = re.compile(r"[-+.0-9eE]*")
_WORD_RUN = re.compile(r"[a-z]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9a-fA-F]")
_WORDS = ("true", "false", "null")
_CLOSER = {"{": "}", "[": "]"}


class Malformed(Exception):  # noqa: N818 - an expected result of a parse, not an error of ours
    """The text does not fit the format. The character that does not fit is not consumed.

    rest: the text that was consumed but not passed on.
    """

    def __init__(self, rest: str = "") -> None:
        self.rest = rest


class Truncated(Malformed):
    """The text ended too early."""


def json_value(reader: Reader, sink: Sink) -> Reading[None]:
    """Reads up to the value's last character. Raises Malformed; the sink then has the valid part."""
    closers: list[str] = []
    can_close = False  # an opened list or object may end before its first item
    while True:
        yield from reader.run(SPACE, sink)
        char = yield from reader.peek()
        if can_close and char == closers[-1]:
            closers.pop()
            _give(reader, char, sink)
        else:
            if closers and closers[-1] == "}":
                yield from _key(reader, sink)
                char = yield from reader.peek()
            if char in ("{", "["):
                if len(closers) == MAX_DEPTH:
                    raise Malformed
                closers.append(_CLOSER[char])
                _give(reader, char, sink)
                can_close = True
                continue
            yield from _scalar(reader, char, sink)
        can_close = False
        if not (yield from _close(reader, closers, sink)):
            return


def json_string(reader: Reader) -> Reading[str]:
    """Returns the decoded text of the string that begins here. Raises Malformed."""
    pieces: list[str] = []
    try:
        yield from string_text(reader, pieces.append)
    except Malformed as problem:
        raise type(problem)("".join(pieces) + problem.rest) from None
    text: str = json.loads("".join(pieces))
    return text


def string_text(reader: Reader, sink: Sink) -> Reading[None]:
    """Reads a string with its quotes. Raises Malformed."""
    if (yield from reader.peek()) != '"':
        raise _wrong((yield from reader.peek()))
    _give(reader, '"', sink)
    while True:
        yield from reader.run(_PLAIN, sink)
        char = yield from reader.peek()
        if not char:
            raise Truncated
        reader.take()
        if char == '"':
            sink(char)
            return
        if char == "\\":
            yield from _escape(reader, sink)
        else:
            sink(json.dumps(char)[1:-1])


def literal(reader: Reader, text: str) -> Reading[None]:
    """Consumes exactly `text`. Raises Malformed."""
    for place, wanted in enumerate(text):
        char = yield from reader.peek()
        if char != wanted:
            raise type(_wrong(char))(text[:place])
        reader.take()


def _close(reader: Reader, closers: list[str], sink: Sink) -> Reading[bool]:
    """Consumes the closers after a value, and a comma. Returns False when the outermost value has ended."""
    while closers:
        yield from reader.run(SPACE, sink)
        char = yield from reader.peek()
        if char not in (",", closers[-1]):
            raise _wrong(char)
        _give(reader, char, sink)
        if char == ",":
            return True
        closers.pop()
    return False


def _key(reader: Reader, sink: Sink) -> Reading[None]:
    yield from string_text(reader, sink)
    yield from reader.run(SPACE, sink)
    char = yield from reader.peek()
    if char != ":":
        raise _wrong(char)
    _give(reader, char, sink)
    yield from reader.run(SPACE, sink)


def _scalar(reader: Reader, char: str, sink: Sink) -> Reading[None]:
    if char == '"':
        yield from string_text(reader, sink)
        return
    is_number = bool(char) and char in "-0123456789"
    text = yield from reader.joined_run(_NUMBER_RUN if is_number else _WORD_RUN)
    if not (_NUMBER.fullmatch(text) if is_number else text in _WORDS):
        raise type(_wrong((yield from reader.peek())))(text)
    sink(text)


def _escape(reader: Reader, sink: Sink) -> Reading[None]:
    """Reads the escape after a backslash, which is already consumed."""
    char = yield from reader.peek()
    if not char:
        raise Truncated("\\")
    if char == "u":
        reader.take()
        digits = ""
        while len(digits) < 4 and _HEX.match((yield from reader.peek())):
            digits += yield from reader.peek()
            reader.take()
        if len(digits) < 4 and not (yield from reader.peek()):
            raise Truncated("\\u" + digits)
        sink(("\\u" if len(digits) == 4 else "\\\\u") + digits)
    elif char in '"\\/bfnrt':
        reader.take()
        sink("\\" + char)
    else:
        sink("\\\\")


def _give(reader: Reader, char: str, sink: Sink) -> None:
    reader.take()
    sink(char)


def _wrong(char: str) -> Malformed:
    return Malformed() if char else Truncated()
