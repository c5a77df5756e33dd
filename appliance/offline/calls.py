"""Calls to the engines of a session that are answered once."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from appliance.base.disk import remedy
from appliance.engine.messages import EngineStats
from appliance.engine.pause_messages import PAUSE_MODES
from appliance.engine.profile import EngineProfile
from appliance.engine.sleep_messages import SLEEP_TAGS, SleepLevel, SleepTag
from appliance.offline.errors import InvalidRequestError, NotHereError, TraceError
from appliance.offline.metrics import EngineFigure, read_metrics
from appliance.offline.session import Session
from appliance.requests import extension
from appliance.service.trace_files import write_trace

_SCHEDULING: Final = "scheduling"  # vLLM's tag for what level 0 of a sleep holds back


async def reset_prefix_cache(session: Session, preempts: bool, resets_connector: bool) -> bool:
    """preempts: what runs gives its blocks back first, and is computed again. Raises NotHereError: there is no
    connector to other caches."""
    if resets_connector:
        raise NotHereError("reset_connector: no cache outside of the engine is connected")
    return all(await session.call_engines(lambda engine: engine.reset_prefix_cache(preempts=preempts)))


async def get_metrics(session: Session) -> list[EngineFigure]:
    return read_metrics(session.metrics.collector)


async def pause(session: Session, mode: str, *, clears_cache: bool) -> None:
    """Raises InvalidRequestError for a mode that is not known."""
    chosen = next((each for each in PAUSE_MODES if each == mode), None)
    if chosen is None:
        raise InvalidRequestError(f"mode is {mode!r}; it must be {', '.join(PAUSE_MODES)}", param="mode")
    await session.call_engines(lambda engine: engine.pause(chosen, clears_cache=clears_cache))


async def resume(session: Session) -> None:
    await session.call_engines(lambda engine: engine.resume())


async def is_paused(session: Session) -> bool:
    told = await session.call_engines(lambda engine: engine.call("stats"))
    return any(msgspec.msgpack.decode(each, type=EngineStats).pause for each in told)


async def sleep(session: Session, level: int, mode: str = "abort") -> None:
    """Level 0 pauses. Raises NotHereError where the plan has no sleep mode, InvalidRequestError for another level."""
    if level == 0:
        return await pause(session, mode, clears_cache=False)
    _check_sleep(session)
    if level not in (1, 2):
        raise InvalidRequestError(f"level is {level}; it must be 0, 1 or 2", param="level")
    if mode != "abort":
        raise InvalidRequestError(f"mode is {mode!r}; a sleep has abort, pause first for another", param="mode")
    chosen: SleepLevel = 1 if level == 1 else 2
    await session.call_engines(lambda engine: engine.sleep(chosen))
    return None


async def wake_up(session: Session, tags: Sequence[str] | None) -> None:
    """Ends a pause as well, without tags or with "scheduling". Raises NotHereError where the plan has no sleep mode,
    InvalidRequestError for a tag that is not known."""
    parts = [tag for tag in tags or () if tag != _SCHEDULING]
    if unknown := [tag for tag in parts if tag not in SLEEP_TAGS]:
        raise InvalidRequestError(f"tags are {', '.join((*SLEEP_TAGS, _SCHEDULING))}, not {unknown[0]!r}", param="tags")
    if parts or (not tags and session.plan.model.sleep_mode):
        _check_sleep(session)
        wanted = cast(tuple[SleepTag, ...], tuple(parts))
        await session.call_engines(lambda engine: engine.wake_up(wanted))
    if not tags or _SCHEDULING in tags:
        await resume(session)


async def start_profile(session: Session) -> None:
    """Starts a trace where the plan has a folder for it."""
    if session.plan.serving.routes.profiler_dir is None:
        await session.call_engines(lambda engine: engine.call("start_profile"))
    else:
        await session.call_engines(lambda engine: engine.start_trace())


async def stop_profile(session: Session) -> list[EngineProfile]:
    """Returns the profile of each engine that had begun one, and writes their traces. Raises TraceError."""
    found: list[EngineProfile | None] = await session.call_engines(lambda engine: engine.stop_profile())
    profiles = [each for each in found if each is not None]
    traces = [each.trace for each in profiles if each.trace is not None]
    folder = session.plan.serving.routes.profiler_dir
    if traces and folder is not None:
        try:
            await asyncio.to_thread(write_trace, Path(folder), session.plan.name, traces)
        except OSError as error:
            problem = f"a trace cannot be written to {folder}: {error.strerror}"
            raise TraceError(problem, hint=remedy(error, "profiler_config")) from error
    return profiles


async def collective_rpc(
    session: Session, method: str, timeout_s: float | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Raises ApiError, and RequestFailedError when an engine is gone."""
    call = extension.extension_call(session.plan.parallel, method, args, kwargs, timeout_s)
    return await extension.call_ranks(session.engines.client.engines, call)


def _check_sleep(session: Session) -> None:
    if not session.plan.model.sleep_mode:
        raise NotHereError(
            "this engine cannot sleep", hint="LLM(model, enable_sleep_mode=True), or model.enable_sleep_mode: true"
        )
