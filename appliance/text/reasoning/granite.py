"""Granite 3.2: two sentences, `Here is my thought process:` and `Here is my response:`."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

_STARTS = ("Here is my thought process:", "Here's my thought process:")
_ENDS = ("Here is my response:", "Here's my response:")

GRANITE = ReasoningFormat(name="granite", script=framed(_STARTS, _ENDS), start=_STARTS[0], end=_ENDS[0])
