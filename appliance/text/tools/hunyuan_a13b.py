"""Hunyuan A13B: `<tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>`."""

from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import marked_calls
from appliance.text.tools.spelling import json_spelling

HUNYUAN_A13B = ToolFormat(
    name="hunyuan_a13b",
    script=marked_calls(("<tool_calls>",), ("</tool_calls>",)),
    special_tokens=("<tool_calls>", "</tool_calls>"),
    spellings=(json_spelling("<tool_calls>[", "]</tool_calls>"),),
)
