"""Llama 3.1 to 3.3: `{"name": ..., "parameters": {...}}` at the beginning of a line, or after `<|python_tag|>`.

Several calls follow one another, with or without a semicolon between them.
"""

from appliance.text.tools.bare_calls import bare_calls
from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import call_object
from appliance.text.tools.spelling import json_spelling

LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    script=bare_calls(call_object, "{", starts=("<|python_tag|>",)),
    special_tokens=("<|python_tag|>",),
    spellings=(json_spelling(separator="; ", arguments="parameters"),),
)
