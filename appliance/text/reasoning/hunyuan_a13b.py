"""Hunyuan A13B: `<think>...</think>`, and the answer between `<answer>` and `</answer>`."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

HUNYUAN_A13B = ReasoningFormat(
    name="hunyuan_a13b",
    script=framed(("<think>",), ("</think>",), answer=("<answer>", "</answer>")),
    start="<think>",
    end="</think>",
    special_tokens=("<think>", "</think>", "<answer>", "</answer>"),
)
