"""POST /pause, POST /resume, GET /is_paused: vLLM's routes, for trainers that change weights or adapters meanwhile.

Served where weights can be replaced or given back. All replicas are meant.
"""

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.pause_messages import PAUSE_MODES, PauseMode
from appliance.requests.errors import ApiError
from appliance.server.admin.asking import stats_of
from appliance.server.admin.query import check_query
from appliance.server.http.callers import check_unlimited
from appliance.server.state import ServerState

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


async def pause(state: ServerState, request: Request) -> Response:
    """Holds requests back: mode=abort (default) ends open ones, mode=wait lets them end, mode=keep stops them."""
    check_unlimited()
    _check(request, "mode", "wait_for_inflight_requests", "clear_cache")
    mode = mode_of(request)
    clears = _truth(request, "clear_cache", default=True)
    await asyncio.gather(*(each.pause(mode, clears_cache=clears) for each in state.client.engines))
    return _answer({"status": "paused"})


async def resume(state: ServerState, request: Request) -> Response:
    """Lets requests run on; those that came meanwhile are answered now."""
    check_unlimited()
    _check(request)
    await asyncio.gather(*(each.resume() for each in state.client.engines))
    return _answer({"status": "resumed"})


async def is_paused(state: ServerState, request: Request) -> Response:
    """Answers whether any engine is paused, and how each is: by its mode, or null."""
    modes = {number: each.pause for number, each in (await stats_of(state.client.numbered_engines)).items()}
    body: dict[str, object] = {"is_paused": any(modes.values()), "mode": next(filter(None, modes.values()), None)}
    if state.plan.parallel.replicas > 1:
        body["engines"] = {str(number): mode for number, mode in modes.items()}
    return _answer(body)


def mode_of(request: Request) -> PauseMode:
    """Returns the mode that is asked for; wait_for_inflight_requests is vLLM's older word for `wait`."""
    given = request.query_params.get("mode")
    if _truth(request, "wait_for_inflight_requests", default=False):
        if given not in (None, "wait"):
            raise ApiError(400, f"wait_for_inflight_requests is mode=wait, and mode is {given}", param="mode")
        return "wait"
    for mode in PAUSE_MODES:
        if mode == (given or "abort"):
            return mode
    raise ApiError(400, f"mode has to be {', '.join(PAUSE_MODES)}, not {given!r}", param="mode")


def _check(request: Request, *known: str) -> None:
    """Raises ApiError for a request that names engines, as it would hold back more than it asks for, and for what
    `check_query` refuses."""
    if "engine" in request.query_params:
        message = "pauses are of all engines; POST /sleep?level=0&engine=N pauses one"
        raise ApiError(400, message, param="engine")
    check_query(request, *known)


def _truth(request: Request, name: str, *, default: bool) -> bool:
    given = request.query_params.get(name)
    if given is None:
        return default
    if given.lower() not in _TRUTH:
        raise ApiError(400, f"{name} has to be true or false, not {given!r}", param=name)
    return _TRUTH[given.lower()]


def _answer(body: dict[str, object]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
