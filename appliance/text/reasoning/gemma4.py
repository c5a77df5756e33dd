"""Gemma 4: a channel, `<|channel>thought` and a line for it, then `<channel|>`."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

GEMMA4 = ReasoningFormat(
    name="gemma4",
    script=framed(("<|channel>thought",), ("<channel|>",)),
    start="<|channel>thought",
    end="<channel|>",
    special_tokens=("<|channel>", "<channel|>"),
)
