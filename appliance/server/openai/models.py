"""GET /v1/models and /v1/models/{id}, in OpenAI's words, and in Anthropic's for a client that names its version."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.plan.types import EnginePlan, PoolingPlan
from appliance.server.http.callers import CALLER
from appliance.server.state import ServerState

_ANTHROPIC = "anthropic-version"  # a header that their clients always send


async def list_models(state: ServerState, request: Request) -> Response:
    """Lists the models that the caller may use."""
    caller = CALLER.get()
    names = [name for name in state.names if caller is None or caller.may_use(name)]
    cards = [_card(state.plan, state.created, name, request.headers, _found(state, name)) for name in names]
    if _ANTHROPIC in request.headers:
        first, last = (names[0], names[-1]) if names else (None, None)
        return _json({"data": cards, "has_more": False, "first_id": first, "last_id": last})
    return _json({"object": "list", "data": cards})


async def get_model(state: ServerState, request: Request) -> Response:
    name = unquote(request.path_params["model"])
    state.check_model(name)
    return _json(_card(state.plan, state.created, name, request.headers, _found(state, name)))


def _card(
    plan: EnginePlan, created_s: int, name: str, headers: Mapping[str, str], found: Mapping[str, Any]
) -> dict[str, Any]:
    """found: what the engine found of the adapter of that name."""
    model = plan.model
    length = model.max_model_len
    adapter = None if plan.adapters is None else plan.adapters.named(name)
    if _ANTHROPIC in headers:
        created = datetime.fromtimestamp(created_s, UTC).isoformat().replace("+00:00", "Z")
        card = {"type": "model", "id": name, "display_name": name, "created_at": created, "lifecycle": "active"}
        return {**card, "max_input_tokens": length, "max_tokens": length}
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "appliance",
        "root": model.served_names[0] if adapter is None else adapter.path,
        "parent": None if adapter is None else adapter.parent or model.served_names[0],
        "max_model_len": length,
        "task": model.task,
        **found,
        **({"weights": "random"} if model.format == "dummy" else {}),
        **({} if model.pooling is None else {"pooling": _pooling(model.pooling)}),
    }


def _found(state: ServerState, name: str) -> dict[str, Any]:
    """What the engine found of an adapter."""
    report = state.client.adapters.get(name)
    if report is None:
        return {}
    return {
        "effective_modules": f"{report.effective_modules}/{report.num_modules}",
        "verified": report.is_verified,
        "sha256": report.adapter.sha256,
    }


def _pooling(pooling: PoolingPlan) -> dict[str, Any]:
    """What a client of a model that pools wants to know before it asks."""
    return {
        "type": pooling.kind,
        "width": pooling.width,
        "activation": pooling.activation,
        "matryoshka_dimensions": pooling.matryoshka_dimensions,
        "labels": pooling.labels,
        "prompts": list(pooling.prompts),
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
