"""POST /debug/profile/start and /stop: the engine's step profiler. Served with the family `debug` only."""

import asyncio
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.profile import added_up
from appliance.server.state import ServerState


async def start_profile(state: ServerState, request: Request) -> Response:
    """Starts a profile; one that runs already starts anew."""
    await asyncio.gather(*(each.call("start_profile") for each in state.client.engines))
    state.open.cpu_at_profile_start = time.process_time()
    return Response(status_code=204)


async def stop_profile(state: ServerState, request: Request) -> Response:
    """The EngineProfile since the start, with this process as the thread "server"; null when none was started. Of
    several replicas it is the sum.

    Of several API processes none speaks for the others, so there is no such thread.
    """
    found = await asyncio.gather(*(each.stop_profile() for each in state.client.engines))
    profile = added_up([each for each in found if each is not None])
    if profile is not None and state.processes is None:
        profile.threads["server"] = time.process_time() - state.open.cpu_at_profile_start
    return Response(msgspec.json.encode(profile), media_type="application/json")
