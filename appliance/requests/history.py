"""Earlier messages of a conversation as a chat template wants them, tool calls and results among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from appliance.requests.chat_kinds import CHAT_CALLS, CHAT_PARTS
from appliance.requests.errors import ApiError, invalid
from appliance.requests.fields import ChatMessage, ContentPart, refuse_unbuilt_message
from appliance.text.tool_style import OPENAI_STYLE, ToolStyle

MAX_MESSAGES = 10_000
SHORT_ID = 9  # characters of a tool call's id that Mistral's templates demand
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class HistoryStyle:
    """as_parts: content is a list of parts. short_ids: ids of calls have nine letters and digits."""

    as_parts: bool = False
    tools: ToolStyle = OPENAI_STYLE
    short_ids: bool = False


def has_tool_messages(messages: Sequence[ChatMessage]) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in messages)


def rendered_messages(messages: Sequence[ChatMessage], style: HistoryStyle) -> list[dict[str, Any]]:
    """Raises ApiError 400 naming the message that is wrong."""
    if not messages:
        raise invalid("messages", "messages is empty; at least one message is needed", "invalid_value")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"messages has {len(messages)} messages; {MAX_MESSAGES} are allowed", "invalid_value")
    names: dict[str, str] = {}  # of the tools that were called, by the call's id
    return [_message(message, place, style, names) for place, message in enumerate(messages)]


def _message(message: ChatMessage, place: int, style: HistoryStyle, names: dict[str, str]) -> dict[str, Any]:
    where = f"messages[{place}]"
    refuse_unbuilt_message(message, place)
    if message.role not in _ROLES:
        allowed = ", ".join(_ROLES)
        problem = f"the role is {message.role[:40]!r}; it must be one of {allowed}"
        raise invalid(f"{where}.role", problem, "invalid_value")
    # Templates know `system`; OpenAI renamed it to `developer` for some models.
    rendered: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    calls = _calls(message, where, style, names)
    rendered["content"] = _content(message, where, style, may_be_empty=bool(calls))
    if calls:
        rendered["tool_calls"] = calls
    if message.role == "assistant":
        rendered |= _reasoning(message, where)
    name = message.name
    if message.role == "tool":
        call_id = _needed_text(message.tool_call_id, f"{where}.tool_call_id")
        rendered["tool_call_id"] = _shown_id(call_id, style)
        name = name or names.get(call_id)
    elif message.tool_call_id is not None:
        raise invalid(f"{where}.tool_call_id", "only a tool's message has a tool_call_id", "invalid_value")
    return {**rendered, "name": name} if name is not None else rendered


def _content(message: ChatMessage, where: str, style: HistoryStyle, *, may_be_empty: bool) -> Any:
    if may_be_empty and not message.content:
        return style.tools.empty_content
    texts = _texts(message, where)
    return [{"type": "text", "text": text} for text in texts] if style.as_parts else "\n".join(texts)


def _texts(message: ChatMessage, where: str) -> list[str]:
    where += ".content"
    if isinstance(message.content, str):
        return [message.content]
    if message.content is None:
        raise invalid(where, f"{where} is missing", "missing_required_parameter")
    if not message.content:
        raise invalid(where, f"{where} is an empty list", "invalid_value")
    return [_part_text(part, f"{where}[{number}]") for number, part in enumerate(message.content)]


def _part_text(part: ContentPart, where: str) -> str:
    CHAT_PARTS.check(part.type, where)
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise invalid(f"{where}.{name}", f"{where} has no {name}", "missing_required_parameter")
    return text


def _reasoning(message: ChatMessage, where: str) -> dict[str, str]:
    """Under each of the names that templates use."""
    given = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        raise invalid(f"{where}.reasoning_content", "reasoning_content must be text", "invalid_type")
    return {"reasoning_content": given, "reasoning": given, "thinking": given}


def _calls(message: ChatMessage, where: str, style: HistoryStyle, names: dict[str, str]) -> list[dict[str, Any]]:
    given = message.tool_calls
    if given is None or given == []:
        return []
    where += ".tool_calls"
    if message.role != "assistant":
        raise invalid(where, f"{where}: only a message of the assistant has tool calls", "invalid_value")
    if not isinstance(given, list):
        raise invalid(where, f"{where} must be a list", "invalid_type")
    return [_call(call, f"{where}[{number}]", style, names) for number, call in enumerate(given)]


def _call(given: Any, where: str, style: HistoryStyle, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _wrong_type(where, "an object")
    CHAT_CALLS.check(str(given.get("type", "function")), where)
    function = given.get("function")
    if not isinstance(function, dict):
        raise _wrong_type(f"{where}.function", "an object")
    call_id = _needed_text(given.get("id"), f"{where}.id")
    name = _needed_text(function.get("name"), f"{where}.function.name")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        raise _wrong_type(f"{where}.function.arguments", "JSON text")
    names[call_id] = name
    shown = _as_object(arguments) if style.tools.arguments == "object" else arguments or "{}"
    return {
        "id": _shown_id(call_id, style),
        "type": "function",
        "function": {"name": name, "arguments": shown},
    }


def _as_object(arguments: str) -> Any:
    """Decodes arguments that a model wrote. If they are no object, a template gets the text as it is."""
    try:
        found = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return arguments
    return found if isinstance(found, dict) else arguments


def _shown_id(call_id: str, style: HistoryStyle) -> str:
    if not style.short_ids:
        return call_id
    return "".join(filter(str.isalnum, call_id))[-SHORT_ID:].rjust(SHORT_ID, "0")


def _needed_text(value: Any, where: str) -> str:
    if value is None or value == "":
        raise invalid(where, f"the field {where!r} is missing", "missing_required_parameter")
    if not isinstance(value, str):
        raise _wrong_type(where, "text")
    return value


def _wrong_type(where: str, wanted: str) -> ApiError:
    return invalid(where, f"{where} must be {wanted}", "invalid_type")
