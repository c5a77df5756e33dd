"""The state of the server: liveness, readiness with reasons, load, version and metrics."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance import __version__
from appliance.requests.errors import ApiError
from appliance.server.state import ServerState
from appliance.service.deep_check import DeepCheck, DeepResult
from appliance.service.health import EngineHealth


async def live(state: ServerState, request: Request) -> Response:
    """200 as long as the process answers at all."""
    return _json({"live": True})


async def ready(state: ServerState, request: Request) -> Response:
    """200 when requests are taken, else 503 with the reasons and how far the start has come.

    With deep=1 a token has to come through the scheduler as well (see DeepCheck). Several replicas are ready while one
    is; then `degraded` says whether others are not, and `replicas` why. A paused engine is ready: requests wait there.
    """
    health = state.health
    reasons = list(health.reasons())
    is_deep = request.query_params.get("deep") in ("1", "true") and not reasons
    deep = await _deep(state.deep, health, reasons) if is_deep else None
    body: dict[str, Any] = {
        "ready": not reasons,
        "state": health.state.value,
        "reasons": reasons,
        "paused": health.is_paused,
        "restarts": health.num_restarts,
        "phases": [
            {
                "name": phase.name,
                "seconds": round(phase.seconds, 3),
                "done": phase.done,
                "total": phase.total,
                "ended": phase.ended,
            }
            for phase in health.phases.values()
        ],
    }
    if health.replicas:
        body["degraded"] = not reasons and not all(each.is_ready for each in health.replicas.values())
        body["replicas"] = [
            {"engine": number, "state": each.state.value, "reason": each.reason, "restarts": each.num_restarts}
            for number, each in health.replicas.items()
        ]
    if deep is not None:
        body["deep"] = {"result": deep.state, "seconds": round(deep.seconds, 3), "reason": deep.reason}
    return _json(body, 503 if reasons else 200)


async def _deep(deep: DeepCheck, health: EngineHealth, reasons: list[str]) -> DeepResult:
    """Lets a token through the scheduler. What that finds wrong is added to `reasons`."""
    found = await deep.result()
    reasons += list(health.reasons()) or ([found.reason] if found.state == "stuck" else [])
    return found


async def healthy(state: ServerState, request: Request) -> Response:
    """vLLM's /health and SageMaker's /ping: an empty 200, or 503."""
    return Response(status_code=503 if state.health.reasons() else 200)


async def load(state: ServerState, request: Request) -> Response:
    """Generation requests that are open. Refused where the plan does not track them, rather than a false 0."""
    if not state.plan.serving.routes.server_load_tracking:
        message = "load is not tracked; set endpoints.http.enable_server_load_tracking"
        raise ApiError(404, message, code="not_enabled")
    return _json({"server_load": state.open.load if state.processes is None else await state.processes.load()})


async def version(state: ServerState, request: Request) -> Response:
    return _json({"version": __version__})


async def metrics(state: ServerState, request: Request) -> Response:
    text = state.metrics.render() if state.processes is None else await state.processes.figures()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
