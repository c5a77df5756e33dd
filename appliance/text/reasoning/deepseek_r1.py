"""DeepSeek R1 and its distillations, V3.1: `<think>...</think>`; the start may be in the prompt or in the answer."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

DEEPSEEK_R1 = ReasoningFormat(
    name="deepseek_r1",
    script=framed(("<think>",), ("</think>",)),
    start="<think>",
    end="</think>",
    begins_open=True,
    special_tokens=("<think>", "</think>"),
)
