"""From the items of a response to a chat conversation."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.requests.errors import invalid, not_in_this_version
from appliance.requests.fields import ChatFields, ChatMessage
from appliance.requests.structured_fields import JsonSchemaFormat, ResponseFormat
from appliance.server.requests.tools import with_note
from appliance.server.responses import kinds
from appliance.server.responses.fields import (
    COPIED,
    LOGPROBS,
    FunctionTool,
    InputItem,
    InputPart,
    ResponsesFields,
    ResponsesToolChoice,
    TextFormat,
)


def chat_fields(fields: ResponsesFields, items: Sequence[InputItem], *, num_earlier: int) -> ChatFields:
    """`items`: the whole conversation, of which `num_earlier` come from earlier responses. Raises ApiError 400."""
    chat = ChatFields(messages=_messages(fields, items, num_earlier))
    for name in COPIED:
        setattr(chat, name, getattr(fields, name))
    if LOGPROBS in (fields.include or []) or fields.top_logprobs:
        chat.logprobs, chat.top_logprobs = True, fields.top_logprobs
    if fields.text is not None and fields.text.format is not None:
        chat.response_format = _response_format(fields.text.format)
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        chat.reasoning_effort = fields.reasoning.effort
    _add_tools(chat, fields)
    return chat


def input_items(fields: ResponsesFields) -> list[InputItem]:
    """Returns the items that this request adds to the conversation."""
    if isinstance(fields.input, str):
        return [InputItem(type="message", role="user", content=fields.input)]
    if not fields.input:
        raise invalid("input", "input is an empty list; at least one item is needed", "invalid_value")
    return fields.input


def _messages(fields: ResponsesFields, items: Sequence[InputItem], num_earlier: int) -> list[ChatMessage]:
    messages = [ChatMessage(role="system", content=fields.instructions)] if fields.instructions else []
    users = [place for place, item in enumerate(items) if item.role == "user"]
    forgets = fields.reasoning is not None and fields.reasoning.context == "current_turn"
    for place, item in enumerate(items):
        if forgets and item.kind == "reasoning" and users and place < users[-1]:
            continue
        _add(messages, item, f"input[{place - num_earlier}]" if place >= num_earlier else "previous_response_id")
    return messages


def _add(messages: list[ChatMessage], item: InputItem, where: str) -> None:
    """Items of the assistant that follow each other are one message: its reasoning, its text and its calls."""
    kind = item.kind
    kinds.ITEMS.check(kind, where)
    last = messages[-1] if messages and messages[-1].role == "assistant" else None
    if kind == "message":
        text = _text(_needed(item, "content", where), f"{where}.content")
        role = _needed(item, "role", where)
        if role == "assistant" and last is not None and not last.content:
            last.content = text
        elif role in ("system", "developer") and messages and all(each.role == "system" for each in messages):
            messages[-1].content = f"{messages[-1].content}\n\n{text}"  # templates know one, at the beginning
        else:
            messages.append(ChatMessage(role="system" if role == "developer" else role, content=text))
    elif kind == "function_call":
        function = {"name": _needed(item, "name", where), "arguments": item.arguments or "{}"}
        call = {"id": _needed(item, "call_id", where), "type": "function", "function": function}
        if last is None:
            last = ChatMessage(role="assistant")
            messages.append(last)
        last.tool_calls = [*(last.tool_calls or []), call]
    elif kind == "function_call_output":
        text = _text(_needed(item, "output", where), f"{where}.output")
        messages.append(ChatMessage(role="tool", tool_call_id=_needed(item, "call_id", where), content=text))
    else:  # reasoning
        content = item.content or item.summary or []
        if text := _text(content, f"{where}.content"):
            messages.append(ChatMessage(role="assistant", content="", reasoning_content=text))


def _needed(item: InputItem, name: str, where: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise invalid(f"{where}.{name}", f"the field '{where}.{name}' is missing", "missing_required_parameter")
    return value


def _text(content: str | list[InputPart], where: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for place, part in enumerate(content):
        kinds.PARTS.check(part.type, f"{where}[{place}]")
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise invalid(f"{where}[{place}].text", f"{where}[{place}] has no text", "missing_required_parameter")
        texts.append(text)
    return "\n".join(texts)


def _response_format(asked: TextFormat) -> ResponseFormat | None:
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return ResponseFormat(type="json_object")
    schema = JsonSchemaFormat(name=asked.name, description=asked.description, schema=asked.schema, strict=asked.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _add_tools(chat: ChatFields, fields: ResponsesFields) -> None:
    """Tools and the choice among them in the words of chat completions."""
    if not fields.tools:
        if fields.tool_choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "tool_choice needs tools", "invalid_value")
        return
    chat.tools = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(fields.tools)]
    choice = fields.tool_choice
    chat.tool_choice = choice if isinstance(choice, str) or choice is None else _chosen(choice)


def _tool(tool: FunctionTool, where: str) -> dict[str, Any]:
    kinds.TOOLS.check(tool.type, where)
    if tool.is_async:
        raise not_in_this_version(f"{where}.async", "a call that the model does not wait for")
    if "direct" not in (tool.allowed_callers or ["direct"]):
        raise not_in_this_version(f"{where}.allowed_callers", "a tool that the model may not call itself")
    description = with_note(tool.description, "It answers with JSON of this schema", tool.output_schema)
    function = {"name": tool.name, "description": description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _chosen(choice: ResponsesToolChoice) -> dict[str, Any]:
    kinds.CHOICES.check(choice.type, "tool_choice")
    if choice.type == "function":
        return {"type": "function", "function": {"name": choice.name}}
    tools = choice.tools or []
    for place, tool in enumerate(tools):
        kinds.TOOLS.check(tool.type, f"tool_choice.tools[{place}]")
    named = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode or "auto", "tools": named}}


ITEMS = msgspec.json.Decoder(list[InputItem])
