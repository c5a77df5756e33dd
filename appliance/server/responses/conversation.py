"""From the items of a response to a chat conversation."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.requests.errors import invalid, not_in_this_version
from appliance.requests.fields import ChatFields, ChatMessage
from appliance.requests.structured_fields import JsonSchemaFormat, ResponseFormat
from appliance.server.requests.tools import with_note
from appliance.server.responses import kinds
from appliance.server.responses.approvals import asked
from appliance.server.responses.fields import (
    COPIED,
    LOGPROBS,
    InputItem,
    InputPart,
    ResponsesFields,
    ResponsesToolChoice,
    ResponseTool,
    TextFormat,
)
from appliance.server.responses.offers import Offers, unknown_choice

_NO_OFFERS = Offers()


def chat_fields(
    fields: ResponsesFields, items: Sequence[InputItem], *, num_earlier: int, offers: Offers = _NO_OFFERS
) -> ChatFields:
    """`items`: the whole conversation, of which `num_earlier` come from earlier responses. Raises ApiError 400."""
    chat = ChatFields(messages=_messages(fields, items, num_earlier, offers))
    for name in COPIED:
        setattr(chat, name, getattr(fields, name))
    if LOGPROBS in (fields.include or []) or fields.top_logprobs:
        chat.logprobs, chat.top_logprobs = True, fields.top_logprobs
    if fields.text is not None and fields.text.format is not None:
        chat.response_format = _response_format(fields.text.format)
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        chat.reasoning_effort = fields.reasoning.effort
    _add_tools(chat, fields, offers)
    return chat


def input_items(fields: ResponsesFields) -> list[InputItem]:
    """Returns the items that this request adds to the conversation."""
    if isinstance(fields.input, str):
        return [InputItem(type="message", role="user", content=fields.input)]
    if not fields.input:
        raise invalid("input", "input is an empty list; at least one item is needed", "invalid_value")
    return fields.input


def _messages(
    fields: ResponsesFields, items: Sequence[InputItem], num_earlier: int, offers: Offers
) -> list[ChatMessage]:
    messages = [ChatMessage(role="system", content=fields.instructions)] if fields.instructions else []
    users = [place for place, item in enumerate(items) if item.role == "user"]
    forgets = fields.reasoning is not None and fields.reasoning.context == "current_turn"
    for place, item in enumerate(items):
        if forgets and item.kind == "reasoning" and users and place < users[-1]:
            continue
        where = f"input[{place - num_earlier}]" if place >= num_earlier else "previous_response_id"
        if item.kind in kinds.MCP_ITEMS:
            _add_of_servers(messages, item, items, offers, where)
        else:
            _add(messages, item, where)
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
        _add_call(messages, call)
    elif kind == "function_call_output":
        text = _text(_needed(item, "output", where), f"{where}.output")
        messages.append(ChatMessage(role="tool", tool_call_id=_needed(item, "call_id", where), content=text))
    else:  # reasoning
        content = item.content or item.summary or []
        if text := _text(content, f"{where}.content"):
            messages.append(ChatMessage(role="assistant", content="", reasoning_content=text))


def _add_of_servers(
    messages: list[ChatMessage], item: InputItem, items: Sequence[InputItem], offers: Offers, where: str
) -> None:
    """A call with its result. One that was refused is told as such; one that waits, or was approved, is not yet."""
    call, text = item, item.output
    if item.kind == "mcp_approval_response":
        call = asked(items, item, f"{where}.approval_request_id")
        if item.approve:
            return
        text = f"The user has refused this call.{f' {item.reason}' if item.reason else ''}"
    elif item.kind != "mcp_call":
        return
    name, label, call_id = (_needed(call, field, where) for field in ("name", "server_label", "id"))
    if found := offers.find(label, name):
        name = found[0]
    function = {"name": name, "arguments": call.arguments or "{}"}
    _add_call(messages, {"id": call_id, "type": "function", "function": function})
    said = _text(text, f"{where}.output") if text else _error_text(item.error)
    messages.append(ChatMessage(role="tool", tool_call_id=call_id, content=said))


def _error_text(error: Any) -> str:
    if error is None:
        return "(nothing)"
    message = error.get("message") if isinstance(error, dict) else error
    return f"Error: {message or 'the call failed'}"


def _add_call(messages: list[ChatMessage], call: dict[str, Any]) -> None:
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant"))
    messages[-1].tool_calls = [*(messages[-1].tool_calls or []), call]


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


def _add_tools(chat: ChatFields, fields: ResponsesFields, offers: Offers) -> None:
    """Tools and the choice among them in the words of chat completions."""
    if not fields.tools:
        if fields.tool_choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "tool_choice needs tools", "invalid_value")
        return
    chat.tools = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(fields.tools) if tool.type != "mcp"]
    chat.tools += [offered.definition(name) for name, offered in offers.tools.items()]
    choice = fields.tool_choice
    chat.tool_choice = choice if isinstance(choice, str) or choice is None else _chosen(choice, offers)
    if not chat.tools:  # no server could be reached
        chat.tools, chat.tool_choice = None, None


def _tool(tool: ResponseTool, where: str) -> dict[str, Any]:
    kinds.TOOLS.check(tool.type, where)
    if tool.is_async:
        raise not_in_this_version(f"{where}.async", "a call that the model does not wait for")
    if "direct" not in (tool.allowed_callers or ["direct"]):
        raise not_in_this_version(f"{where}.allowed_callers", "a tool that the model may not call itself")
    description = with_note(tool.description, "It answers with JSON of this schema", tool.output_schema)
    function = {"name": tool.name, "description": description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _chosen(choice: ResponsesToolChoice, offers: Offers) -> dict[str, Any]:
    kinds.CHOICES.check(choice.type, "tool_choice")
    if choice.type == "function":
        return _named(choice.name)
    if choice.type == "mcp":
        names = _names_of(choice.server_label, choice.name, offers)
        return _named(names[0]) if choice.name is not None else _allowed("required", names)
    names = []
    for place, tool in enumerate(choice.tools or []):
        kinds.TOOLS.check(tool.type, f"tool_choice.tools[{place}]")
        names += [tool.name] if tool.type == "function" else _names_of(tool.server_label, tool.name, offers)
    return _allowed(choice.mode or "auto", names)


def _names_of(label: str | None, name: str | None, offers: Offers) -> list[str | None]:
    names: list[str | None] = [*offers.names_of(label or "", name)]
    if not names:
        raise unknown_choice(label, name)
    return names


def _named(name: str | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _allowed(mode: str, names: Sequence[str | None]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [_named(name) for name in names]}}


ITEMS = msgspec.json.Decoder(list[InputItem])
