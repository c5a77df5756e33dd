"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and since its
tokenizer 11 `[TOOL_CALLS]name[ARGS]{...}`, where `[CALL_ID]id` may stand after the name and `[ARGS]` may be absent.
"""

import re

from appliance.text.parsing.json_text import Malformed, json_value
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.json_calls import call_array, call_object
from appliance.text.tools.spelling import Spelling, json_spelling
from appliance.text.tools.writer import CallWriter

_CALLS, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_CALLS_MARKERS = Markers(_CALLS)
_WORD = re.compile(r"[\w.\-]*")


def _script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    while marker := (yield from writer.content_until(_CALLS_MARKERS)):
        yield from writer.attempt(_calls(reader, writer), marker)


def _calls(reader: Reader, writer: CallWriter) -> Reading[None]:
    char = yield from reader.skip_space()
    if char == "[":
        yield from call_array(reader, writer)
    elif char == "{":
        yield from call_object(reader, writer)
    else:
        yield from _named_call(reader, writer)


def _named_call(reader: Reader, writer: CallWriter) -> Reading[None]:
    name = yield from reader.joined_run(_WORD)
    call_id = None
    if not name:
        raise Malformed
    if (yield from reader.skip_space()) == "[":
        marker = yield from _bracketed(reader)
        if marker == _CALL_ID:
            yield from reader.skip_space()
            call_id = yield from reader.joined_run(_WORD)
            if (yield from reader.skip_space()) == "[":
                marker = yield from _bracketed(reader)
        if marker not in (_ARGUMENTS, _CALL_ID):
            raise Malformed
    if (yield from reader.skip_space()) != "{":
        raise Malformed
    writer.start(name, call_id or None)
    yield from json_value(reader, writer.arguments)
    writer.done()


def _bracketed(reader: Reader) -> Reading[str]:
    """Reads [WORD] and returns WORD. Raises Malformed."""
    reader.take()
    word = yield from reader.joined_run(_WORD)
    if (yield from reader.peek()) != "]":
        raise Malformed
    reader.take()
    return f"[{word}]"


MISTRAL = ToolFormat(
    name="mistral",
    script=_script,
    special_tokens=(_CALLS, _ARGUMENTS, _CALL_ID),
    short_ids=True,
    spellings=(json_spelling(f"{_CALLS} [", "]"), Spelling(before=_CALLS, after=_ARGUMENTS)),
)
