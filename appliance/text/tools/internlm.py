"""InternLM 2.5: `<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

from appliance.text.tools.format import ToolFormat
from appliance.text.tools.json_calls import marked_calls
from appliance.text.tools.spelling import json_spelling

INTERNLM = ToolFormat(
    name="internlm",
    script=marked_calls(("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), ("<|action_end|>",)),
    special_tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    spellings=(
        json_spelling(
            before="<|action_start|><|plugin|>\n", end="<|action_end|>", separator="\n", arguments="parameters"
        ),
    ),
)
