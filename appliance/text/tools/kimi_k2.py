"""Kimi K2: between `<|tool_calls_section_begin|>` and `<|tool_calls_section_end|>`, each call is

    <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>

where `functions.name:0` is the call's id.
"""

from appliance.text.parsing.json_text import Malformed, json_value
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import ToolFormat
from appliance.text.tools.section import ToolSection
from appliance.text.tools.spelling import Spelling
from appliance.text.tools.writer import CallWriter

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID_END = Markers(_ARGUMENTS, "{", "\n")


def _call(reader: Reader, writer: CallWriter) -> Reading[None]:
    pieces: list[str] = []
    end = yield from reader.until(_ID_END, pieces.append)
    call_id = "".join(pieces).strip()
    name = call_id.removeprefix("functions.").rpartition(":")[0] or call_id
    if end != _ARGUMENTS or not name or (yield from reader.skip_space()) != "{":
        raise Malformed
    writer.start(name, call_id)
    yield from json_value(reader, writer.arguments)
    writer.done()


KIMI_K2 = ToolFormat(
    name="kimi_k2",
    script=ToolSection(_CALLS, _CALL, _CALL_END, _CALLS_END).script(_call),
    special_tokens=(_CALLS, _CALLS_END, _CALL, _ARGUMENTS, _CALL_END),
    spellings=(
        Spelling(
            opening=_CALLS,
            before=f"{_CALL}functions.",
            numbered=":",
            after=_ARGUMENTS,
            end=_CALL_END,
            closing=_CALLS_END,
        ),
    ),
)
