"""POST /v1/messages and /v1/messages/count_tokens."""

import uuid
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import invalid
from appliance.requests.fields import ChatFields
from appliance.server.anthropic.answer import MessageAnswer
from appliance.server.anthropic.context import EditedPrompt, edited
from appliance.server.anthropic.conversation import chat_fields
from appliance.server.anthropic.fields import MessagesFields, PromptFields, Thinking, refuse_unbuilt
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.output.generation import respond
from appliance.server.requests.tools import shown_tools
from appliance.server.requests.turn import capped, prepare_turn
from appliance.server.state import ServerState

_MESSAGES = json_decoder(MessagesFields)
_PROMPT = json_decoder(PromptFields)


async def create_message(state: ServerState, request: Request) -> Response:
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _MESSAGES)
    await _check(state, fields)
    if fields.max_tokens < 1:
        raise invalid("max_tokens", f"max_tokens is {fields.max_tokens}; it must be at least 1", "invalid_value")
    prompt = await _edited(state, fields)
    chat = _chat(state, prompt.fields)
    chat.temperature, chat.top_p, chat.top_k = fields.temperature, fields.top_p, fields.top_k
    chat.stop = fields.stop_sequences
    request_id = uuid.uuid4().hex
    turn = capped(await prepare_turn(state, chat, request_id), fields.max_tokens)
    answer = MessageAnswer(state, fields, turn, prompt.applied)
    response = await respond(state, request, [turn.request], answer, is_streamed=bool(fields.stream))
    response.headers["request-id"] = f"req_{request_id}"
    return response


async def count_tokens(state: ServerState, request: Request) -> Response:
    """Counts the tokens that the prompt of the same message would have, template included."""
    fields = await read_fields(state.plan.serving, request, _PROMPT)
    await _check(state, fields)
    prompt = await _edited(state, fields)
    body: dict[str, Any] = {"input_tokens": await _num_tokens(state, prompt.fields)}
    if fields.context_management is not None:
        original = await _num_tokens(state, fields) if prompt.applied else body["input_tokens"]
        body["context_management"] = {"original_input_tokens": original}
    return Response(orjson.dumps(body), media_type="application/json")


async def _check(state: ServerState, fields: PromptFields) -> None:
    await state.find_model(fields.model)
    refuse_unbuilt(fields)
    if (
        state.plan.serving.parsers.reasoning is None
        and fields.thinking is not None
        and fields.thinking.type == "enabled"
    ):
        message = "this model has no parser of reasoning, so it gives no thinking blocks: set decoding.reasoning_parser"
        raise invalid("thinking", f"thinking: {message}", "unsupported_parameter")


def _chat(state: ServerState, fields: PromptFields) -> ChatFields:
    """Translates to the fields of chat. Adaptive thinking is off if no parser could separate it from the answer."""
    is_adaptive = fields.thinking is not None and fields.thinking.type == "adaptive"
    if is_adaptive and state.plan.serving.parsers.reasoning is None:
        fields.thinking = Thinking(type="disabled")
    return chat_fields(fields)


async def _edited(state: ServerState, fields: PromptFields) -> EditedPrompt:
    async def count(prompt: PromptFields) -> int:
        return await _num_tokens(state, prompt)

    return await edited(fields, count)


async def _num_tokens(state: ServerState, fields: PromptFields) -> int:
    """Counts the tokens of the prompt, of any length."""
    chat = _chat(state, fields)
    _, token_ids = await state.prompts.chat_tokens(chat, shown_tools(chat), add_special_tokens=False)
    return len(token_ids)
