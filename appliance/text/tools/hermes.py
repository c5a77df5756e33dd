"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import marked_calls

HERMES = ToolFormat(
    name="hermes",
    script=marked_calls(("<tool_call>",), ("</tool_call>",)),
    special_tokens=("<tool_call>", "</tool_call>"),
)
