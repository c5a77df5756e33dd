"""Magistral: `[THINK]...[/THINK]`."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

MISTRAL = ReasoningFormat(
    name="mistral",
    script=framed(("[THINK]",), ("[/THINK]",)),
    start="[THINK]",
    end="[/THINK]",
    special_tokens=("[THINK]", "[/THINK]"),
)
