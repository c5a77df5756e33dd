"""POST /invocations: SageMaker's one entry. The body says which API it is for."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import invalid
from appliance.server.http.bodies import decode_body, give_back, json_decoder, read_body
from appliance.server.openai.chat import create_chat_completion
from appliance.server.openai.completions import create_completion
from appliance.server.state import ServerState


class _Kind(msgspec.Struct):
    """The fields that show which API is meant; that API reads the rest."""

    messages: Any = None
    prompt: Any = None


_DECODER = json_decoder(_Kind)


async def invocations(state: ServerState, request: Request) -> Response:
    """Chat for `messages`, completions for `prompt`."""
    body = await read_body(request, state.plan.serving.limits.max_body_bytes)
    kind = decode_body(body, _DECODER)
    if (kind.messages is None) == (kind.prompt is None):
        raise invalid("prompt", "exactly one of prompt and messages is needed", "invalid_value")
    give_back(request, body)
    return await (create_completion if kind.messages is None else create_chat_completion)(state, request)
