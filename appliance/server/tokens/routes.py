"""POST /tokenize and /detokenize."""

import asyncio
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import invalid
from appliance.requests.fields import ChatFields, ChatMessage
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.requests.tools import shown_tools
from appliance.server.state import ServerState


class TokenizeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either `prompt`, or `messages` with what shapes a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None  # true for a prompt, false for messages
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None  # see server.tools
    return_token_strs: bool | None = False


class DetokenizeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[int]


_TOKENIZE = json_decoder(TokenizeFields)
_DETOKENIZE = json_decoder(DetokenizeFields)


async def tokenize(state: ServerState, request: Request) -> Response:
    fields = await read_fields(state.plan.serving, request, _TOKENIZE)
    state.check_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise invalid("prompt", "exactly one of prompt and messages is needed", "invalid_value")
    special = fields.add_special_tokens if fields.add_special_tokens is not None else fields.messages is None
    if fields.prompt is None:
        token_ids = await _of_messages(state, fields, add_special_tokens=special)
    else:
        token_ids = await asyncio.to_thread(state.tokenizer.encode, fields.prompt, add_special_tokens=special)
    answer: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": state.plan.model.max_model_len,
        "tokens": token_ids,
        "token_strs": None,
    }
    if fields.return_token_strs:
        answer["token_strs"] = [state.tokenizer.token_text(token_id) for token_id in token_ids]
    return Response(orjson.dumps(answer), media_type="application/json")


async def detokenize(state: ServerState, request: Request) -> Response:
    fields = await read_fields(state.plan.serving, request, _DETOKENIZE)
    state.check_model(fields.model)
    for place, token_id in enumerate(fields.tokens):
        if not 0 <= token_id < 1 << 31:
            raise invalid(
                f"tokens[{place}]", f"tokens[{place}] is {token_id}, which no vocabulary has", "invalid_value"
            )
    text = await asyncio.to_thread(state.tokenizer.decode, fields.tokens)
    return Response(orjson.dumps({"prompt": text}), media_type="application/json")


async def _of_messages(state: ServerState, fields: TokenizeFields, *, add_special_tokens: bool) -> list[int]:
    chat = ChatFields(
        messages=fields.messages or [],
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
        tools=fields.tools,
    )
    _, token_ids = await state.prompts.chat_tokens(chat, shown_tools(chat), add_special_tokens=add_special_tokens)
    return token_ids
