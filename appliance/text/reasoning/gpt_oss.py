"""gpt-oss: the channel `analysis`. Channels frame calls as well, so the tool format reads the whole."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.tools.gpt_oss import GPT_OSS as _TOOLS

GPT_OSS = ReasoningFormat(name="gpt_oss", script=None, start="", end="", tool_format=_TOOLS)
