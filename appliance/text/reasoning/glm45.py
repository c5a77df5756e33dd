"""GLM 4.5 and later: `<think>...</think>`."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

GLM45 = ReasoningFormat(
    name="glm45",
    script=framed(("<think>",), ("</think>",)),
    start="<think>",
    end="</think>",
    special_tokens=("<think>", "</think>"),
)
