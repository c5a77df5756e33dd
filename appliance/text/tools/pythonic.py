"""Llama 3.2, ToolACE and others: a Python list of calls, `[weather(city="Oslo"), now()]`. Arguments become JSON."""

from appliance.text.tools.bare_calls import bare_calls
from appliance.text.tools.format import ToolFormat
from appliance.text.tools.python_calls import python_calls, python_spelling

PYTHONIC = ToolFormat(name="pythonic", script=bare_calls(python_calls, "["), spellings=(python_spelling(),))
