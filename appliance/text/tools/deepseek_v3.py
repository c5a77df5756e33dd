"""DeepSeek V3 and R1, and V3.1. Between `<calls begin>` and `<calls end>`, each call is

V3:    <call begin>function<sep>name, a line break, the arguments in a fence of json, <call end>
V3.1:  <call begin>name<sep>{...}<call end>
"""

import re

from appliance.text.parsing.json_text import Malformed, json_value
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import ToolFormat
from appliance.text.tools.section import ToolSection
from appliance.text.tools.spelling import Spelling
from appliance.text.tools.writer import CallWriter

_BAR, _GAP = "\uff5c", "\u2581"


def _token(*words: str) -> str:
    return f"<{_BAR}{_GAP.join(words)}{_BAR}>"


CALLS_BEGIN, CALLS_END = _token("tool", "calls", "begin"), _token("tool", "calls", "end")
CALL_BEGIN, CALL_END = _token("tool", "call", "begin"), _token("tool", "call", "end")
SEPARATOR = _token("tool", "sep")

_HEAD = Markers(SEPARATOR, "\n", "{")
_LINE = re.compile(r"[^\n{]*")
_FENCE = re.compile(r"[`a-z \r]*")
_FENCE_END = re.compile(r"[` \t\r\n]*")


def _call(reader: Reader, writer: CallWriter) -> Reading[None]:
    head: list[str] = []
    if (yield from reader.until(_HEAD, head.append)) != SEPARATOR:
        raise Malformed
    name = "".join(head).strip()
    is_fenced = (yield from reader.skip_space()) != "{"
    if is_fenced:
        name = (yield from reader.joined_run(_LINE)).strip()
        yield from reader.skip_space()
        yield from reader.run(_FENCE, _ignore)
    if (yield from reader.skip_space()) != "{" or not name:
        raise Malformed
    writer.start(name)
    yield from json_value(reader, writer.arguments)
    writer.done()
    if is_fenced:
        yield from reader.run(_FENCE_END, _ignore)


def _ignore(_: str) -> None:
    """Drops the text."""


DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    script=ToolSection(CALLS_BEGIN, CALL_BEGIN, CALL_END, CALLS_END).script(_call),
    special_tokens=(CALLS_BEGIN, CALL_BEGIN, SEPARATOR, CALL_END, CALLS_END),
    spellings=(
        Spelling(
            opening=CALLS_BEGIN,
            before=f"{CALL_BEGIN}function{SEPARATOR}",
            after="\n```json\n",
            end=f"\n```{CALL_END}",
            separator="\n",
            closing=CALLS_END,
        ),
        Spelling(opening=CALLS_BEGIN, before=CALL_BEGIN, after=SEPARATOR, end=CALL_END, closing=CALLS_END),
    ),
)
