"""POST /sleep, POST /wake_up, GET /is_sleeping: vLLM's routes, served where model.enable_sleep_mode is true.

Of several replicas, engine=1 names one, and may be given several times; without it all are meant.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, cast

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.messages import ErrorKind
from appliance.engine.pause_messages import PauseMode
from appliance.engine.sleep_messages import SLEEP_TAGS, SleepLevel, SleepStats, SleepTag
from appliance.requests.errors import ApiError
from appliance.server.admin.asking import stats_of
from appliance.server.admin.pause import mode_of
from appliance.server.admin.query import check_query
from appliance.server.state import ServerState
from appliance.service.client import EngineClient
from appliance.service.errors import RequestFailedError

_SCHEDULING: Final = "scheduling"  # vLLM's tag for what level=0 holds back


async def sleep(state: ServerState, request: Request) -> Response:
    """Aborts open requests and gives memory back. level=1 (default) keeps the weights on the host, level=2 nothing;
    level=0 pauses, as mode says."""
    check_query(request, "level", "mode", "wait_for_inflight_requests", "engine")
    level = request.query_params.get("level", "1")
    if level == "0":
        pause_mode = mode_of(request)
        return await _ask(state, request, lambda engine: _paused(engine, pause_mode))
    if level not in ("1", "2"):
        raise ApiError(400, f"level has to be 0, 1 or 2, not {level!r}", param="level")
    mode = request.query_params.get("mode", "abort")
    if mode != "abort":
        raise ApiError(400, f"mode has to be abort, not {mode!r}", param="mode")
    chosen: SleepLevel = 1 if level == "1" else 2
    return await _ask(state, request, lambda engine: _slept(engine, chosen))


async def wake_up(state: ServerState, request: Request) -> Response:
    """Brings parts back: tags=weights, tags=kv_cache, all without any; tags=scheduling, and none, end a pause too."""
    check_query(request, "tags", "engine")
    tags = request.query_params.getlist("tags")
    if unknown := [tag for tag in tags if tag not in (*SLEEP_TAGS, _SCHEDULING)]:
        raise ApiError(400, f"tags are {', '.join((*SLEEP_TAGS, _SCHEDULING))}, not {unknown[0]!r}", param="tags")
    return await _ask(state, request, lambda engine: _woken(engine, tags))


async def is_sleeping(state: ServerState, request: Request) -> Response:
    """Answers true until every part is back, with the level and the seconds of the last sleep and of waking."""
    told = await stats_of(_meant(state, request))
    return _answer(state, {number: each.sleep or SleepStats() for number, each in told.items()})


async def _slept(engine: EngineClient, level: SleepLevel) -> SleepStats:
    """Raises ApiError if the engine refuses, as its weights were replaced, or are being."""
    try:
        return msgspec.msgpack.decode(await engine.sleep(level), type=SleepStats)
    except RequestFailedError as error:
        if error.kind is not ErrorKind.INTERNAL:
            raise
        raise ApiError(400, f"it stays awake: {error}", param="level", code="sleep_refused") from error


async def _paused(engine: EngineClient, mode: PauseMode) -> SleepStats:
    await engine.pause(mode, clears_cache=False)
    return await _stats(engine)


async def _woken(engine: EngineClient, tags: Sequence[str]) -> SleepStats:
    parts = cast(tuple[SleepTag, ...], tuple(tag for tag in tags if tag != _SCHEDULING))
    if parts or not tags:
        await engine.wake_up(parts)
    if not tags or _SCHEDULING in tags:
        await engine.resume()
    return await _stats(engine)


async def _stats(engine: EngineClient) -> SleepStats:
    return (await stats_of({0: engine}))[0].sleep or SleepStats()


async def _ask(state: ServerState, request: Request, ask: Callable[[EngineClient], Awaitable[SleepStats]]) -> Response:
    """Asks the engines that are meant, and answers what each then says."""
    engines = _meant(state, request)
    told = await asyncio.gather(*map(ask, engines.values()))
    return _answer(state, dict(zip(engines, told, strict=True)))


def _answer(state: ServerState, found: Mapping[int, SleepStats]) -> Response:
    """Those parts sleep that sleep in any, and seconds are those of the slowest."""
    body: dict[str, object] = _body(
        SleepStats(
            asleep=tuple(tag for tag in SLEEP_TAGS if any(tag in each.asleep for each in found.values())),
            level=max(each.level for each in found.values()),
            sleep_s=max(each.sleep_s for each in found.values()),
            wake_s=max(each.wake_s for each in found.values()),
        )
    )
    if state.plan.parallel.replicas > 1:
        body["engines"] = {str(number): _body(each) for number, each in found.items()}
    return Response(orjson.dumps(body), media_type="application/json")


def _meant(state: ServerState, request: Request) -> Mapping[int, EngineClient]:
    """Returns the engines that a request names, by their numbers; all without any."""
    there = state.client.numbered_engines
    names = {str(number): number for number in there}
    wanted = request.query_params.getlist("engine") or names
    if unknown := [each for each in wanted if each not in names]:
        message = f"engine has to be the number of one that is there ({', '.join(names)}), not {unknown[0]!r}"
        raise ApiError(400, message, param="engine")
    return {names[each]: there[names[each]] for each in wanted}


def _body(stats: SleepStats) -> dict[str, object]:
    return {"is_sleeping": bool(stats.asleep), **msgspec.to_builtins(stats)}
