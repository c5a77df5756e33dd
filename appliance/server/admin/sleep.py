"""POST /sleep, POST /wake_up, GET /is_sleeping: vLLM's routes, served where model.enable_sleep_mode is true."""

import asyncio
from typing import cast

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.messages import EngineStats
from appliance.engine.sleep_messages import SLEEP_TAGS, SleepLevel, SleepStats, SleepTag
from appliance.requests.errors import ApiError
from appliance.server.state import ServerState


async def sleep(state: ServerState, request: Request) -> Response:
    """Aborts open requests and gives memory back. level=1 (default) keeps the weights on the host, level=2 nothing."""
    level = request.query_params.get("level", "1")
    if level not in ("1", "2"):
        raise ApiError(400, f"level has to be 1 or 2, not {level!r}", param="level")
    mode = request.query_params.get("mode", "abort")
    if mode != "abort":
        raise ApiError(400, f"mode has to be abort, not {mode!r}", param="mode")
    chosen: SleepLevel = 1 if level == "1" else 2
    return _answer([_stats(each) for each in await asyncio.gather(*(e.sleep(chosen) for e in state.client.engines))])


async def wake_up(state: ServerState, request: Request) -> Response:
    """Brings parts back: tags=weights, tags=kv_cache, all without any."""
    tags = request.query_params.getlist("tags")
    if unknown := [tag for tag in tags if tag not in SLEEP_TAGS]:
        raise ApiError(400, f"tags are {' and '.join(SLEEP_TAGS)}, not {unknown[0]!r}", param="tags")
    wanted = cast(tuple[SleepTag, ...], tuple(tags))
    return _answer([_stats(each) for each in await asyncio.gather(*(e.wake_up(wanted) for e in state.client.engines))])


async def is_sleeping(state: ServerState, request: Request) -> Response:
    """Answers true until every part is back, with the level and the seconds of the last sleep and of waking."""
    answers = await asyncio.gather(*(each.call("stats") for each in state.client.engines))
    stats = [msgspec.msgpack.decode(each, type=EngineStats).sleep for each in answers]
    return _answer([SleepStats() if each is None else each for each in stats])


def _stats(answer: msgspec.Raw) -> SleepStats:
    return msgspec.msgpack.decode(answer, type=SleepStats)


def _answer(engines: list[SleepStats]) -> Response:
    """Of several replicas, those parts sleep that sleep in any, and seconds are those of the slowest."""
    stats = SleepStats(
        asleep=tuple(tag for tag in SLEEP_TAGS if any(tag in each.asleep for each in engines)),
        level=max(each.level for each in engines),
        sleep_s=max(each.sleep_s for each in engines),
        wake_s=max(each.wake_s for each in engines),
    )
    body = {"is_sleeping": bool(stats.asleep), **msgspec.to_builtins(stats)}
    return Response(orjson.dumps(body), media_type="application/json")
