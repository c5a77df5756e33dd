"""GLM 4.5 and later: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>`.

Line breaks stand between the tags.
"""

import json
import re

from appliance.text.parsing.json_text import Malformed, Truncated, literal
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.spelling import ParameterSpelling, Spelling
from appliance.text.tools.tagged_values import read_tag, read_value
from appliance.text.tools.writer import CallWriter

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_MARKERS = Markers(_CALL, _CALL_END)
_NAME = re.compile(r"[^<\n]*")


def _script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    while marker := (yield from writer.content_until(_MARKERS)):
        if marker == _CALL:
            yield from writer.attempt(_call(reader, writer, context), marker)
        elif not writer.is_after_call:
            writer.content(marker)


def _call(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    yield from reader.skip_space()
    name = (yield from reader.joined_run(_NAME)).strip()
    tag = yield from read_tag(reader)
    if not name or f"<{tag}>" not in (_KEY, _CALL_END):
        raise Malformed
    if f"<{tag}>" == _CALL_END:
        writer.whole(name, "{}")
        return
    writer.start(name)
    before = "{"
    while f"<{tag}>" == _KEY:
        key = yield from _key(reader)
        writer.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        yield from reader.skip_space()
        yield from literal(reader, _VALUE)
        yield from read_value(reader, Markers(_VALUE_END), context.schemas.get(name, {}), key, writer.arguments)
        before = ", "
        tag = yield from read_tag(reader)
    if f"<{tag}>" != _CALL_END:
        raise Malformed(f"<{tag}>")
    writer.arguments("}")
    writer.done()


def _key(reader: Reader) -> Reading[str]:
    pieces: list[str] = []
    if not (yield from reader.until(Markers(_KEY_END), pieces.append)):
        raise Truncated
    return "".join(pieces).strip()


GLM45 = ToolFormat(
    name="glm45",
    script=_script,
    special_tokens=(_CALL, _CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END),
    spellings=(
        Spelling(
            before=_CALL,
            after="\n",
            end=_CALL_END,
            separator="\n",
            parameters=ParameterSpelling(before=_KEY, middle=f"{_KEY_END}\n{_VALUE}", end=f"{_VALUE_END}\n"),
        ),
    ),
)
