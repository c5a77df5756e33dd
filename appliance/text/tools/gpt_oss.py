"""gpt-oss: OpenAI's harmony. A message is

    <|start|>assistant<|channel|>CHANNEL to=RECIPIENT <|constrain|>json<|message|>TEXT<|end|>

where `<|start|>assistant` of the first one is in the prompt, the recipient may come before the channel, and `<|call|>`
or `<|return|>` may be the end. The channel `analysis` is reasoning; `final` and `commentary` are content. A message to
`functions.NAME` is a call of NAME; a message to any other recipient is reasoning.
"""

import re

from appliance.text.parsing.json_text import Malformed, json_value, literal
from appliance.text.parsing.reader import SPACE, Markers, Reader, Reading, Sink
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.writer import CallWriter

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_FRAME = Markers(_START, _CHANNEL, _MESSAGE, *_ENDS)
_AFTER_HEAD = Markers(_START, _MESSAGE, *_ENDS)
_AFTER_BODY = Markers(_START, _CHANNEL, *_ENDS)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."


def _script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    shown = _Paragraphs(writer)
    head, marker = yield from _first_head(reader, writer)
    while marker:
        if marker == _MESSAGE:
            marker = yield from _body(reader, writer, context, head + marker, shown)
            head = ""
        elif marker in _ENDS:
            writer.content(head)
            head, marker = "", (yield from reader.until(_FRAME, writer.content))
        else:
            pieces = [head, marker]
            marker = yield from reader.until(_AFTER_HEAD, pieces.append)
            head = "".join(pieces)
    writer.content(head)


def _first_head(reader: Reader, writer: CallWriter) -> Reading[tuple[str, str]]:
    """Returns the recipient before the first channel (or ""), and the first marker; other text is content."""
    pieces = [(yield from _first_recipient(reader, writer))]
    marker = yield from reader.until(_FRAME, pieces.append if pieces[0] else writer.content)
    return "".join(pieces), marker


def _first_recipient(reader: Reader, writer: CallWriter) -> Reading[str]:
    """Returns the recipient before the first channel, or ""; anything else is content."""
    reader.record()
    yield from reader.joined_run(SPACE)
    try:
        yield from literal(reader, "to=")
    except Malformed:
        writer.content(reader.take_record())
        return ""
    return reader.take_record()


def _body(reader: Reader, writer: CallWriter, context: ToolContext, head: str, shown: "_Paragraphs") -> Reading[str]:
    """Reads the text of a message, and returns the marker after it."""
    found = _RECIPIENT.search(head)
    recipient = found.group(1) if found else ""
    is_call = recipient.startswith(_FUNCTIONS)
    if is_call and context.may_call:
        name = recipient.removeprefix(_FUNCTIONS)
        yield from writer.attempt(_call(reader, writer, name), head)
        sink: Sink = writer.content
    elif (recipient and not is_call) or f"{_CHANNEL}analysis" in head:
        sink = shown.reasoning()
    else:
        sink = shown.content()
    return (yield from reader.until(_AFTER_BODY, sink))


def _call(reader: Reader, writer: CallWriter, name: str) -> Reading[None]:
    char = yield from reader.skip_space()
    if char in ("", "<"):
        writer.whole(name, "{}")
        return
    if char != "{":
        raise Malformed
    writer.start(name)
    yield from json_value(reader, writer.arguments)
    writer.done()


class _Paragraphs:
    """Separates messages of one kind by a line break."""

    def __init__(self, writer: CallWriter) -> None:
        self._writer = writer
        self._has_reasoning = False
        self._has_content = False

    def reasoning(self) -> Sink:
        if self._has_reasoning:
            self._writer.reasoning("\n")
        self._has_reasoning = True
        return self._writer.reasoning

    def content(self) -> Sink:
        if self._has_content:
            self._writer.content("\n")
        self._has_content = True
        return self._writer.content


GPT_OSS = ToolFormat(
    name="gpt_oss",
    script=_script,
    special_tokens=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS),
    reads_reasoning=True,
)
