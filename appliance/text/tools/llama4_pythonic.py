"""Llama 4: a Python list of calls, which may be between `<|python_start|>` and `<|python_end|>`."""

from appliance.text.tools.bare_calls import bare_calls
from appliance.text.tools.format import ToolFormat
from appliance.text.tools.python_calls import python_calls, python_spelling

_START, _END = "<|python_start|>", "<|python_end|>"

LLAMA4_PYTHONIC = ToolFormat(
    name="llama4_pythonic",
    script=bare_calls(python_calls, "[", starts=(_START,), ends=(_END,)),
    special_tokens=(_START, _END),
    spellings=(python_spelling(_START, _END),),
)
