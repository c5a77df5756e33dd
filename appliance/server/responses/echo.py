"""The fields of a response object that repeat its request."""

import time
from typing import Any

import msgspec

from appliance.server.responses.fields import ResponsesFields, ResponseTool


def echoed(fields: ResponsesFields, response_id: str, model: str) -> dict[str, Any]:
    """A response without status, output and usage."""
    reasoning, text = fields.reasoning, fields.text
    format_ = {"type": "text"} if text is None or text.format is None else msgspec.to_builtins(text.format)
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "background": bool(fields.background),
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "model": model,
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": fields.store is not False,
        "temperature": fields.temperature,
        "text": {"format": _without_none(format_), "verbosity": "medium"},
        "tool_choice": _tool_choice(fields),
        "tools": [_tool(tool) for tool in fields.tools or []],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }


def _tool_choice(fields: ResponsesFields) -> Any:
    choice = fields.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return _without_none(msgspec.to_builtins(choice))


def _tool(tool: ResponseTool) -> dict[str, Any]:
    always = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {**always, **_without_none(msgspec.to_builtins(tool))}


def _without_none(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}
