"""Phi-4 mini: `functools[{"name": ..., "arguments": {...}}, ...]`."""

from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import marked_calls
from appliance.text.tools.spelling import json_spelling

PHI4_MINI_JSON = ToolFormat(
    name="phi4_mini_json",
    script=marked_calls(("functools", "<|tool_call|>"), ("<|/tool_call|>",)),
    special_tokens=("<|tool_call|>", "<|/tool_call|>"),
    spellings=(json_spelling("functools[", "]"),),
)
