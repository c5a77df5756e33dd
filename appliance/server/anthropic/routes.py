"""POST /v1/messages and /v1/messages/count_tokens."""

import uuid

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.server.anthropic.answer import MessageAnswer
from appliance.server.anthropic.conversation import chat_fields
from appliance.server.anthropic.fields import MessagesFields, PromptFields, refuse_unbuilt
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.http.errors import invalid
from appliance.server.output.generation import respond
from appliance.server.requests.fields import ChatFields
from appliance.server.requests.tools import shown_tools
from appliance.server.requests.turn import capped, prepare_turn
from appliance.server.state import ServerState

_MESSAGES = json_decoder(MessagesFields)
_PROMPT = json_decoder(PromptFields)


async def create_message(state: ServerState, request: Request) -> Response:
    state.client.check_admission()
    fields = await read_fields(state, request, _MESSAGES)
    chat = _checked(state, fields)
    if fields.max_tokens < 1:
        raise invalid("max_tokens", f"max_tokens is {fields.max_tokens}; it must be at least 1", "invalid_value")
    chat.temperature, chat.top_p, chat.top_k = fields.temperature, fields.top_p, fields.top_k
    chat.stop = fields.stop_sequences
    request_id = uuid.uuid4().hex
    turn = capped(await prepare_turn(state, chat, request_id), fields.max_tokens)
    answer = MessageAnswer(state, fields, turn)
    response = await respond(state, request, [turn.request], answer, is_streamed=bool(fields.stream))
    response.headers["request-id"] = f"req_{request_id}"
    return response


async def count_tokens(state: ServerState, request: Request) -> Response:
    """What the prompt of the same message would have, template and all."""
    fields = await read_fields(state, request, _PROMPT)
    chat = _checked(state, fields)
    _, token_ids = await state.prompts.chat(chat, shown_tools(chat))
    return Response(orjson.dumps({"input_tokens": len(token_ids)}), media_type="application/json")


def _checked(state: ServerState, fields: PromptFields) -> ChatFields:
    state.check_model(fields.model)
    refuse_unbuilt(fields)
    wants_thinking = fields.thinking is not None and fields.thinking.type != "disabled"
    if wants_thinking and state.plan.serving.parsers.reasoning is None:
        message = "this model has no parser of reasoning, so it gives no thinking blocks: set decoding.reasoning_parser"
        raise invalid("thinking", f"thinking: {message}", "unsupported_parameter")
    return chat_fields(fields)
