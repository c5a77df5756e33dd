"""GET /v1/models and /v1/models/{id}."""

from typing import Any
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.server.http.callers import CALLER
from appliance.server.state import ServerState


async def list_models(state: ServerState, request: Request) -> Response:
    """Those that the caller may use."""
    caller = CALLER.get()
    names = [name for name in state.plan.model.served_names if caller is None or caller.may_use(name)]
    models = [_card(state, name) for name in names]
    return _json({"object": "list", "data": models})


async def get_model(state: ServerState, request: Request) -> Response:
    name = unquote(request.path_params["model"])
    state.check_model(name)
    return _json(_card(state, name))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "appliance",
        "root": state.model_name,
        "parent": None,
        "max_model_len": state.plan.model.max_model_len,
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
