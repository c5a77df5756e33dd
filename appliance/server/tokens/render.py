"""POST /v1/chat/completions/render and /v1/completions/render: a request up to its token ids, without generation.

The answer is a body of /inference/v1/generate, so that another server may generate what this one prepared.
"""

from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import not_in_this_version
from appliance.requests.fields import ChatFields, CompletionFields, GenerationFields, refuse_unbuilt
from appliance.requests.sampling import LengthWish, SamplingRules, text_options
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.openai.completions import DEFAULT_MAX_TOKENS
from appliance.server.output.generation import request_id_of
from appliance.server.requests.turn import prepare_turn
from appliance.server.state import ServerState
from appliance.server.tokens.fields import SAMPLING_NAMES, TokenSamplingFields

_CHAT = json_decoder(ChatFields)
_COMPLETION = json_decoder(CompletionFields)
_LOST = (  # token ids and sampling cannot tell them
    "use_beam_search", "best_of", "echo", "suffix", "response_format", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "structured_outputs", "prompt_embeds",
)  # fmt: skip


async def render_chat(state: ServerState, request: Request) -> Response:
    """Shows the request from which /v1/chat/completions would generate."""
    fields = await read_fields(state.plan.serving, request, _CHAT)
    _check(fields)
    turn = await prepare_turn(state, fields, request_id_of(request, state.plan.serving.http, fields))
    if turn.request.constraint is not None:
        raise not_in_this_version("tool_choice", "rendering with a call that must be made")
    logprobs = turn.request.sampling.logprobs
    return _json(_rendered(state.model_name, fields, turn.request.prompt_token_ids, turn.request.request_id, logprobs))


async def render_completion(state: ServerState, request: Request) -> Response:
    """Shows the requests from which /v1/completions would generate, one for each prompt."""
    fields = await read_fields(state.plan.serving, request, _COMPLETION)
    state.check_model(fields.model)
    refuse_unbuilt(fields)
    _check(fields)
    request_id = request_id_of(request, state.plan.serving.http, fields)
    fields.max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    prompts = await state.prompts.completion(fields)
    for prompt in prompts:
        _check_sampling(state.sampling, fields, len(prompt.token_ids))
    rendered = [
        _rendered(state.model_name, fields, prompt.token_ids, f"{request_id}-{place}", fields.logprobs)
        for place, prompt in enumerate(prompts)
    ]
    return _json(rendered)


def _check_sampling(rules: SamplingRules, fields: CompletionFields, num_prompt_tokens: int) -> None:
    """Applies the bounds of generation to what is only rendered. Raises ApiError 400."""
    wish = LengthWish(asked=fields.max_tokens, field="max_tokens", prompt_field="prompt")
    rules.params(fields, rules.max_tokens(wish, num_prompt_tokens), fields.logprobs, fields.prompt_logprobs)
    rules.check_priority(fields)
    text_options(fields)


def _check(fields: GenerationFields) -> None:
    for name in _LOST:
        if getattr(fields, name, None):
            raise not_in_this_version(name, f"rendering with {name}")


def _rendered(
    model: str, fields: GenerationFields, token_ids: list[int], request_id: str, logprobs: int | None
) -> dict[str, Any]:
    sampling = {name: getattr(fields, name) for name in SAMPLING_NAMES if name != "logprobs"}
    max_tokens = getattr(fields, "max_completion_tokens", None) or fields.max_tokens
    told = msgspec.to_builtins(TokenSamplingFields(max_tokens=max_tokens, logprobs=logprobs, **sampling))
    stream_options = None if fields.stream_options is None else msgspec.to_builtins(fields.stream_options)
    return {
        "request_id": request_id,
        "model": model,
        "token_ids": token_ids,
        "sampling_params": told,
        "stream": bool(fields.stream),
        "stream_options": stream_options,
        "priority": fields.priority or 0,
        "cache_salt": fields.cache_salt,
        "features": None,
        "kv_transfer_params": None,
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
