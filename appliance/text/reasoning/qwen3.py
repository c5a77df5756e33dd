"""Qwen 3, QwQ: `<think>...</think>`."""

from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed

QWEN3 = ReasoningFormat(
    name="qwen3",
    script=framed(("<think>",), ("</think>",)),
    start="<think>",
    end="</think>",
    special_tokens=("<think>", "</think>"),
)
