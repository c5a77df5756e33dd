"""Granite 20B function calling: `<function_call> {"name": ..., "arguments": {...}}`, with a marker for each call."""

from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import marked_calls
from appliance.text.tools.spelling import json_spelling

GRANITE_20B_FC = ToolFormat(
    name="granite-20b-fc",
    script=marked_calls(("<function_call>",)),
    special_tokens=("<function_call>",),
    spellings=(json_spelling(before="<function_call> ", separator="\n"),),
)
