"""Step 3: text up to `</think>`; the start is in the prompt."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

STEP3 = ReasoningFormat(
    name="step3",
    script=framed(("<think>",), ("</think>",)),
    start="<think>",
    end="</think>",
    begins_open=True,
    special_tokens=("<think>", "</think>"),
)
