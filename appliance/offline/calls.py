"""Calls to the engines of a session that are answered once."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from appliance.engine.profile import EngineProfile
from appliance.engine.sleep_messages import SLEEP_TAGS, SleepLevel, SleepTag
from appliance.offline.errors import InvalidRequestError, NotHereError
from appliance.offline.session import Session
from appliance.requests import extension


async def reset_prefix_cache(session: Session) -> bool:
    answers = await session.call_engines(lambda engine: engine.call("reset_prefix_cache"))
    return all(msgspec.msgpack.decode(each, type=bool) for each in answers)


async def sleep(session: Session, level: int) -> None:
    """Raises NotHereError where the plan has no sleep mode, InvalidRequestError for another level."""
    _check_sleep(session)
    if level not in (1, 2):
        raise InvalidRequestError(f"level is {level}; it must be 1 or 2", param="level")
    chosen: SleepLevel = 1 if level == 1 else 2
    await session.call_engines(lambda engine: engine.sleep(chosen))


async def wake_up(session: Session, tags: Sequence[str] | None) -> None:
    """Raises NotHereError where the plan has no sleep mode, InvalidRequestError for a tag that is not known."""
    _check_sleep(session)
    if unknown := [tag for tag in tags or () if tag not in SLEEP_TAGS]:
        raise InvalidRequestError(f"tags are {' and '.join(SLEEP_TAGS)}, not {unknown[0]!r}", param="tags")
    wanted = cast(tuple[SleepTag, ...], tuple(tags or ()))
    await session.call_engines(lambda engine: engine.wake_up(wanted))


async def start_profile(session: Session) -> None:
    await session.call_engines(lambda engine: engine.call("start_profile"))


async def stop_profile(session: Session) -> list[EngineProfile]:
    """Returns the profile of each engine that had begun one."""
    found: list[EngineProfile | None] = await session.call_engines(lambda engine: engine.stop_profile())
    return [each for each in found if each is not None]


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
