"""Detects the form in which a chat template expects earlier tool calls, by rendering one in every form."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from appliance.text.errors import ChatTemplateError
from appliance.text.template import ChatTemplate

_NAME, _KEY, _VALUE, _ID = "probe_tool", "probe_key", "probe value", "probeid01"
_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A key."}}},
    },
}


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """arguments: an object, or JSON text. empty_content: the content of a message that has only calls."""

    arguments: Literal["object", "text"] = "object"
    empty_content: Literal[""] | None = None


OPENAI_STYLE = ToolStyle("text")
_STYLES = (ToolStyle(), ToolStyle("object", ""), OPENAI_STYLE, ToolStyle("text", ""))


def detect_tool_style(template: ChatTemplate) -> ToolStyle:
    """Returns the first form that is rendered correctly; OpenAI's own if none is."""
    return next((style for style in _STYLES if _renders(template, style)), ToolStyle("text"))


def _renders(template: ChatTemplate, style: ToolStyle) -> bool:
    arguments: Any = _ARGUMENTS if style.arguments == "object" else json.dumps(_ARGUMENTS)
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "probe question"},
        {"role": "assistant", "content": style.empty_content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": "probe result"},
    ]
    try:
        text = template.render(messages, tools=[_TOOL])
    except ChatTemplateError:
        return False
    shown = text[text.find("probe question") :]
    is_quoted = f'\\"{_KEY}' in shown or f"'{_KEY}'" in shown  # JSON text inside a JSON string, or a Python dict
    return _NAME in shown and _VALUE in shown and "None" not in shown and not is_quoted
