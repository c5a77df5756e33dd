"""From Anthropic's messages to a chat conversation."""

from collections.abc import Iterator
from typing import Any

import orjson

from appliance.requests.errors import invalid, not_in_this_version
from appliance.requests.fields import ChatFields, ChatMessage
from appliance.requests.structured_fields import JsonSchemaFormat, ResponseFormat
from appliance.server.anthropic.fields import (
    ContentBlock,
    InputMessage,
    MessagesToolChoice,
    PromptFields,
    ToolDefinition,
)
from appliance.server.anthropic.kinds import BLOCKS, TOOLS
from appliance.server.requests.tools import with_note

_REDACTED = "redacted_thinking"


def chat_fields(fields: PromptFields) -> ChatFields:
    """The prompt as chat fields, without what shapes the answer. Raises ApiError 400 naming Anthropic's field.

    A last message of the assistant is one that the answer continues.
    """
    messages = [*_system(fields), *_joined(fields.messages)]
    if not fields.messages:
        raise invalid("messages", "messages is empty; at least one message is needed", "invalid_value")
    continues = fields.messages[-1].role == "assistant"
    chat = ChatFields(
        model=fields.model,
        messages=messages,
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )
    _add_tools(chat, fields)
    if fields.thinking is not None:
        chat.enable_thinking = fields.thinking.type != "disabled"
        chat.include_reasoning = fields.thinking.display != "omitted"
    if (config := fields.output_config) is not None:
        chat.reasoning_effort = config.effort
        if config.format is not None:
            schema = JsonSchemaFormat(name="output", schema=config.format.schema)
            chat.response_format = ResponseFormat(type="json_schema", json_schema=schema)
    return chat


def _system(fields: PromptFields) -> Iterator[ChatMessage]:
    if isinstance(fields.system, str):
        texts = [fields.system]
    else:
        texts = [_text(block, f"system[{place}]") for place, block in enumerate(fields.system or [])]
    if any(texts):
        yield ChatMessage(role="system", content="\n\n".join(texts))


def _joined(given: list[InputMessage]) -> list[ChatMessage]:
    """Neighbours of one role are one turn, as Anthropic reads them."""
    messages: list[ChatMessage] = []
    last_user = max((place for place, message in enumerate(given) if message.role == "user"), default=-1)
    for place, message in enumerate(given):
        parts = list(_parts(message, f"messages[{place}].content"))
        if message.role == "system" and message.clear_at == "next_user_message" and place < last_user:
            continue
        for part in parts:
            last = messages[-1] if messages else None
            if last is not None and last.role == part.role and part.role in ("user", "assistant"):
                _extend(last, part)
            else:
                messages.append(part)
    return messages


def _extend(last: ChatMessage, part: ChatMessage) -> None:
    texts = [text for text in (last.content, part.content) if isinstance(text, str) and text]
    last.content = "\n\n".join(texts) if texts else last.content
    last.tool_calls = [*(last.tool_calls or []), *(part.tool_calls or [])] or None
    reasoning = [text for text in (last.reasoning_content, part.reasoning_content) if text]
    last.reasoning_content = "\n".join(reasoning) or None


def _parts(message: InputMessage, where: str) -> Iterator[ChatMessage]:
    """The chat messages of one message: tool results are messages of their own."""
    if isinstance(message.content, str):
        yield ChatMessage(role=message.role, content=message.content)
        return
    if not message.content:
        raise invalid(where, f"{where} is an empty list", "invalid_value")
    texts: list[str] = []
    made = ChatMessage(role=message.role)
    for place, block in enumerate(message.content):
        at = f"{where}[{place}]"
        if block.type == "tool_result" and message.role == "user":
            yield ChatMessage(role="tool", tool_call_id=_needed(block, "tool_use_id", at), content=_result(block, at))
        elif block.type == "tool_use" and message.role == "assistant":
            made.tool_calls = [*(made.tool_calls or []), _tool_call(block, at)]
        elif block.type == "thinking" and message.role == "assistant":
            made.reasoning_content = (made.reasoning_content or "") + _needed(block, "thinking", at)
        elif block.type != _REDACTED or message.role != "assistant":
            texts.append(_text(block, at))
    if texts or made.tool_calls or made.reasoning_content:
        made.content = "\n".join(texts) if texts or not made.tool_calls else None
        yield made


def _text(block: ContentBlock, where: str) -> str:
    BLOCKS.check(block.type, where)
    if block.type != "text":
        raise invalid(f"{where}.type", f"{where}: content of type {block.type!r} does not belong here", "invalid_value")
    if block.citations:
        raise not_in_this_version(f"{where}.citations", "citations")
    text = _needed(block, "text", where)
    if not text:
        raise invalid(f"{where}.text", f"{where}.text is empty", "invalid_value")
    return text


def _needed(block: ContentBlock, name: str, where: str) -> str:
    value: str | None = getattr(block, name)
    if value is None:
        raise invalid(f"{where}.{name}", f"the field '{where}.{name}' is missing", "missing_required_parameter")
    return value


def _result(block: ContentBlock, where: str) -> str:
    """Returns the text of a tool's result. An error is marked in the text, as chat messages have no field for it."""
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        text = "\n".join(_text(part, f"{where}.content[{place}]") for place, part in enumerate(block.content))
    return f"Error: {text}" if block.is_error else text


def _tool_call(block: ContentBlock, where: str) -> dict[str, Any]:
    arguments = orjson.dumps(block.input or {}).decode()
    function = {"name": _needed(block, "name", where), "arguments": arguments}
    return {"id": _needed(block, "id", where), "type": "function", "function": function}


def _add_tools(chat: ChatFields, fields: PromptFields) -> None:
    """Tools and the choice among them in OpenAI's words."""
    if not fields.tools:
        if fields.tool_choice is not None and fields.tool_choice.type in ("any", "tool"):
            raise invalid("tool_choice", "tool_choice needs tools", "invalid_value")
        return
    chat.tools = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(fields.tools)]
    if fields.tool_choice is not None:
        chat.tool_choice = _chosen(fields.tool_choice)
        if fields.tool_choice.disable_parallel_tool_use:
            chat.parallel_tool_calls = False


def _tool(tool: ToolDefinition, where: str) -> dict[str, Any]:
    TOOLS.check(tool.type, where)
    for name in ("name", "input_schema"):
        if getattr(tool, name) is None:
            raise invalid(f"{where}.{name}", f"the field '{where}.{name}' is missing", "missing_required_parameter")
    description = with_note(tool.description, "Examples of its input", tool.input_examples)
    function = {"name": tool.name, "parameters": tool.input_schema, "description": description, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _chosen(choice: MessagesToolChoice) -> Any:
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice.name", "tool_choice.name is missing", "missing_required_parameter")
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
