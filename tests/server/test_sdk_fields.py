"""Whatever the installed clients of OpenAI and Anthropic can say is done, or refused at its place and by its kind.

The cases are read from the clients' own types, so a new version of a client brings its new words along.
"""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam
from anthropic.types.beta.beta_context_management_config_param import BetaContextManagementConfigParam
from anthropic.types.beta.beta_thinking_config_param import BetaThinkingConfigParam
from anthropic.types.beta.beta_tool_union_param import BetaToolUnionParam
from anthropic.types.beta.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from openai.types.batch_create_params import BatchCreateParams
from openai.types.chat.chat_completion_content_part_param import ChatCompletionContentPartParam
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from appliance.server.responses.kinds import MCP_ITEMS
from tests.server.sdk_types import Sample, fields_of, kinds_of, sample_of

CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}]}
MESSAGES = {**CHAT, "max_tokens": 4}
RESPONSE = {"model": "scripted", "input": "greet", "store": False}
BATCH = {"input_file_id": "x", "endpoint": "/v1/completions", "completion_window": "24h"}
IN_HEADERS = {"betas", "user_profile_id", "workspace_id"}  # the client sends these beside the body
PARAMS: list[tuple[str, Any, dict[str, Any]]] = [
    ("/v1/chat/completions", ChatParams, CHAT),
    ("/v1/completions", CompletionParams, {"model": "scripted", "prompt": "Say: "}),
    ("/v1/responses", ResponseCreateParamsBase, RESPONSE),
    ("/v1/responses/input_tokens", InputTokenCountParams, RESPONSE),
    ("/v1/messages", MessageCreateParamsBase, MESSAGES),
    ("/v1/messages/count_tokens", MessageCountTokensParams, CHAT),
    ("/v1/batches", BatchCreateParams, BATCH),
]
FIELDS = [
    pytest.param(path, name, hint, body, id=f"{path} {name}")
    for path, params, body in PARAMS
    for name, hint in fields_of(params).items()
    if name not in {*body, *IN_HEADERS}
]


@pytest.mark.parametrize(("path", "name", "hint", "body"), FIELDS)
def test_every_field_is_done_or_refused(http: httpx.Client, path: str, name: str, hint: Any, body: Any) -> None:
    answer = http.post(path, json={**body, name: sample_of(hint)})
    if answer.status_code == 200:
        return
    error = answer.json()["error"]
    assert answer.status_code in (400, 404), answer.text
    assert "unknown field" not in error["message"], error
    blamed = [name, "input_file_id"] if path == "/v1/batches" else [name]  # there is no such file
    param = error.get("param") or ""
    assert any(each in error["message"] or param.startswith(each) for each in blamed), error


Ask = Callable[[httpx.Client, dict[str, Any]], httpx.Response]


def _post(path: str, body: Callable[[dict[str, Any]], dict[str, Any]]) -> Ask:
    return lambda http, value: http.post(path, json=body(value))


def _message(block: dict[str, Any]) -> dict[str, Any]:
    """With the block where it may stand."""
    role = "user" if block["type"] in ("tool_result", "image", "document") else "assistant"
    return {**CHAT, "messages": [*CHAT["messages"], {"role": role, "content": [block]}]}


def _edits(edit: dict[str, Any]) -> dict[str, Any]:
    return {**CHAT, "context_management": {"edits": [edit]}}


RESPONSES = "/v1/responses/input_tokens"
COUNT = "/v1/messages/count_tokens"
RENDER = "/v1/chat/completions/render"
TOOLS = [{"type": "function", "name": "x"}]
USER_PARTS = lambda part: {**CHAT, "messages": [{"role": "user", "content": [part]}]}  # noqa: E731
PLACES: dict[str, tuple[Any, Ask, set[str]]] = {
    "tools of Messages": (BetaToolUnionParam, _post(COUNT, lambda tool: {**CHAT, "tools": [tool]}), {"custom"}),
    "blocks of Messages": (
        BetaContentBlockParam, _post(COUNT, _message),
        {"text", "thinking", "redacted_thinking", "tool_use", "tool_result"},
    ),
    "thinking": (
        BetaThinkingConfigParam, _post(COUNT, lambda value: {**CHAT, "thinking": value}),
        {"enabled", "disabled", "adaptive"},
    ),
    "edits": (
        fields_of(BetaContextManagementConfigParam)["edits"], _post(COUNT, _edits),
        {"clear_tool_uses_20250919", "clear_thinking_20251015"},
    ),
    "tools of chat": (
        fields_of(ChatParams)["tools"], _post(RENDER, lambda tool: {**CHAT, "tools": [tool]}), {"function"},
    ),
    "parts of chat": (ChatCompletionContentPartParam, _post(RENDER, USER_PARTS), {"text"}),
    "tools of Responses": (
        fields_of(ResponseCreateParamsBase)["tools"], _post(RESPONSES, lambda tool: {**RESPONSE, "tools": [tool]}),
        {"function", "mcp"},
    ),
    "choices of Responses": (
        fields_of(ResponseCreateParamsBase)["tool_choice"],
        _post(RESPONSES, lambda choice: {**RESPONSE, "tools": TOOLS, "tool_choice": choice}),
        {"function", "mcp", "allowed_tools"},
    ),
    "items of Responses": (
        ResponseInputItemParam, _post(RESPONSES, lambda item: {**RESPONSE, "input": [item]}),
        {"message", "function_call", "function_call_output", "reasoning", *MCP_ITEMS},
    ),
}  # fmt: skip
KINDS = [
    pytest.param(ask, sample, served, id=f"{place} {sample.name}")
    for place, (hint, ask, served) in PLACES.items()
    for sample in kinds_of(hint)
]


@pytest.mark.parametrize(("ask", "sample", "served"), KINDS)
def test_every_kind_is_taken_or_refused_as_such(http: httpx.Client, ask: Ask, sample: Sample, served: set[str]) -> None:
    answer = ask(http, sample.value)
    error = {"message": "", "code": None} if answer.status_code == 200 else answer.json()["error"]
    assert answer.status_code in (200, 400), answer.text
    assert "unknown field" not in error["message"], error
    kind = sample.value["type"]
    if kind in served:
        assert f"of type {kind!r}" not in error["message"], error
    else:
        assert answer.status_code == 400, sample
        assert f"of type {kind!r}" in error["message"], error
        assert error.get("code") in (None, "unsupported_parameter")


def test_every_place_has_kinds_of_both_sorts() -> None:
    seen = {place: {sample.value["type"] for sample in kinds_of(hint)} for place, (hint, _, _) in PLACES.items()}
    assert all(served <= seen[place] for place, (_, _, served) in PLACES.items())
    assert sum(len(kinds - PLACES[place][2]) for place, kinds in seen.items()) > 50
