"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`.

Line breaks stand between the tags. The outer tags may be absent.
"""

import json

from appliance.text.parsing.json_text import Malformed, literal
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.spelling import ParameterSpelling, Spelling
from appliance.text.tools.tagged_values import read_tag, read_value
from appliance.text.tools.writer import CallWriter

_CALL, _CALL_END, _FUNCTION = "<tool_call>", "</tool_call>", "<function="
_MARKERS = Markers(_CALL, _CALL_END, _FUNCTION)
_NAME_END = Markers(">", "\n")
_VALUE_END = Markers("</parameter>")
_PARAMETER, _FUNCTION_END = "parameter=", "/function"


def _script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    while marker := (yield from writer.content_until(_MARKERS)):
        if marker == _CALL:
            yield from writer.attempt(_wrapped(reader, writer, context), marker)
        elif marker == _FUNCTION:
            yield from writer.attempt(_function(reader, writer, context), marker)
        elif not writer.is_after_call:
            writer.content(marker)


def _wrapped(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    yield from reader.skip_space()
    yield from literal(reader, _FUNCTION)
    yield from _function(reader, writer, context)


def _function(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    pieces: list[str] = []
    end = yield from reader.until(_NAME_END, pieces.append)
    name = "".join(pieces).strip()
    if end != ">" or not name:
        raise Malformed
    schema = context.schemas.get(name, {})
    tag = yield from read_tag(reader)
    if tag == _FUNCTION_END:
        writer.whole(name, "{}")
        return
    before = "{"
    while tag.startswith(_PARAMETER):
        if before == "{":
            writer.start(name)
        key = tag.removeprefix(_PARAMETER).strip()
        writer.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        yield from read_value(reader, _VALUE_END, schema, key, writer.arguments)
        before = ", "
        tag = yield from read_tag(reader)
    if tag != _FUNCTION_END or before == "{":
        raise Malformed(f"<{tag}>")
    writer.arguments("}")
    writer.done()


QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    script=_script,
    special_tokens=(_CALL, _CALL_END),
    spellings=(
        Spelling(
            before=f"{_CALL}\n{_FUNCTION}",
            after=">\n",
            end=f"</function>\n{_CALL_END}",
            separator="\n",
            parameters=ParameterSpelling(before="<parameter=", middle=">\n", end="\n</parameter>\n"),
        ),
    ),
)
