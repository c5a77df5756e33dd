"""POST /start_profile and /stop_profile: vLLM's routes, served where observability.profiler_dir names a folder."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.base.log import logger
from appliance.requests.errors import ApiError
from appliance.server.http.callers import check_unlimited
from appliance.server.state import ServerState
from appliance.service.trace_files import write_trace

_log = logger("server")


async def start_profile(state: ServerState, request: Request) -> Response:
    """Starts a trace of every engine; one that runs already starts anew."""
    check_unlimited()
    await asyncio.gather(*(each.start_trace() for each in state.client.engines))
    return _answer({"profiling": True})


async def stop_profile(state: ServerState, request: Request) -> Response:
    """Ends the trace and writes it into the folder; answers its file's name. 400 if none runs."""
    check_unlimited()
    found = await asyncio.gather(*(each.stop_profile() for each in state.client.engines))
    traces = [each.trace for each in found if each is not None and each.trace is not None]
    if not traces:
        raise ApiError(400, "no profile runs: POST /start_profile starts one")
    folder = state.plan.serving.routes.profiler_dir
    assert folder is not None, "the route is served with a folder only"
    try:
        name = await asyncio.to_thread(write_trace, Path(folder), state.plan.name, traces)
    except OSError as error:
        _log.error("a profile cannot be written to %s: %s", folder, error.strerror)
        raise ApiError(500, f"the profile cannot be written: {error.strerror}; the log says where") from error
    steps, left_out = sum(len(each.steps) for each in traces), sum(each.num_dropped for each in traces)
    return _answer({"file": name, "num_steps": steps, "num_steps_left_out": left_out})


def _answer(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
