"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Small and coder models of these families forget the tags. So the object alone is a call too, at the beginning of a line
or in a code fence, if its name is one of the request's tools; the fence is then layout.
"""

import re

from appliance.text.parsing.reader import SPACE, Markers, Reader, Reading
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.json_calls import call_object, call_object_or_array
from appliance.text.tools.spelling import json_spelling
from appliance.text.tools.writer import CallWriter

_START, _END, _FENCE, _LINE = "<tool_call>", "</tool_call>", "```", "\n"
_MARKERS = Markers(_START, _END, _FENCE, _LINE)
_LANGUAGE = re.compile(r"[a-z]*")


def _script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    marker = _LINE
    while marker:
        if marker == _START:
            yield from writer.attempt(call_object_or_array(reader, writer), marker)
        elif marker == _FENCE and not writer.is_after_call:
            yield from writer.attempt(_fenced(reader, writer, context), marker)
        elif marker == _LINE:
            yield from reader.run(SPACE, writer.content)
            if (yield from reader.peek()) == "{":
                yield from writer.attempt(call_object(reader, writer, context.schemas))
        elif not writer.is_after_call:
            writer.content(marker)
        if writer.is_after_call and marker != _END:
            yield from reader.skip_space()
            if (yield from reader.peek()) == "{":
                marker = _LINE  # another call may follow at once
                continue
        marker = yield from writer.content_until(_MARKERS)
        if marker == _LINE:
            writer.content(marker)


def _fenced(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    yield from reader.joined_run(_LANGUAGE)
    yield from call_object_or_array(reader, writer, context.schemas)


HERMES = ToolFormat(
    name="hermes",
    script=_script,
    special_tokens=(_START, _END),
    spellings=(json_spelling(before=f"{_START}\n", end=f"\n{_END}", separator="\n"),),
)
