"""Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`."""

from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import marked_calls
from appliance.text.tools.spelling import json_spelling

GRANITE = ToolFormat(
    name="granite",
    script=marked_calls(("<|tool_call|>", "<tool_call>"), ("</tool_call>",)),
    special_tokens=("<|tool_call|>", "<tool_call>", "</tool_call>"),
    spellings=(json_spelling("<|tool_call|>[", "]"),),
)
