"""What engines say of themselves, for routes that only look."""

import asyncio
from collections.abc import Mapping

import msgspec

from appliance.engine.messages import EngineStats, ErrorKind
from appliance.service.client import EngineClient
from appliance.service.errors import RequestFailedError


async def stats_of(engines: Mapping[int, EngineClient]) -> dict[int, EngineStats]:
    """Returns the stats of each engine, by its number. One that ends while it is asked is left out, as it would be a
    moment later; raises RequestFailedError when that leaves none."""
    told = dict(zip(engines, await asyncio.gather(*map(_stats, engines.values())), strict=True))
    found = {number: each for number, each in told.items() if isinstance(each, EngineStats)}
    if not found:
        raise next(each for each in told.values() if isinstance(each, RequestFailedError))
    return found


async def _stats(engine: EngineClient) -> EngineStats | RequestFailedError:
    try:
        return msgspec.msgpack.decode(await engine.call("stats"), type=EngineStats)
    except RequestFailedError as error:
        if error.kind is not ErrorKind.UNAVAILABLE:
            raise
        return error
