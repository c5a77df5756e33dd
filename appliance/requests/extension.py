"""Calls of the operator's own class on every rank, as the server's route and the Python API ask for them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from appliance.engine.extension_messages import MOST_CALL_S, ExtensionAnswer, ExtensionCall
from appliance.plan.parallel_types import ParallelPlan
from appliance.requests.errors import ApiError, invalid
from appliance.service.client import EngineClient

_ANSWERS = msgspec.msgpack.Decoder(list[ExtensionAnswer])


def extension_call(
    parallel: ParallelPlan, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], timeout_s: float | None
) -> ExtensionCall:
    """Returns the call of a method with values of JSON. timeout_s: for each rank; None is as long as may be.

    Raises ApiError where no class is planned, and for a wrong method or timeout.
    """
    if parallel.worker_extension_cls is None:
        raise ApiError(400, "no class is there to call; hint: parallelism.worker_extension_cls", code="no_extension")
    if not method:
        raise invalid("method", "method is the name of a method of parallelism.worker_extension_cls")
    most_s = min(MOST_CALL_S, parallel.distributed_timeout_s / 2)  # the ranks wait that long for one another
    timeout_s = most_s if timeout_s is None else timeout_s
    if not 0 < timeout_s <= most_s:
        raise invalid("timeout", f"timeout is {timeout_s:g}; it must be above 0 and at most {most_s:g} seconds")
    call = ExtensionCall(method, list(args), dict(kwargs), timeout_s)
    try:
        msgspec.msgpack.encode(call)
    except OverflowError as error:
        raise invalid("args", "args and kwargs have an integer of more than 64 bits") from error
    return call


async def call_ranks(engines: Sequence[EngineClient], call: ExtensionCall) -> list[Any]:
    """Returns what the method returned on each rank, in order; of several replicas one after the other.

    Raises ApiError for a method that is not known or failed, RequestFailedError when an engine is gone.
    """
    of_engines = await asyncio.gather(*(each.call_extension(call) for each in engines))
    answers = [answer for engine in of_engines for answer in _ANSWERS.decode(engine)]
    for rank, answer in enumerate(answers):
        if answer.is_unknown:
            raise ApiError(404, answer.error or "", param="method", code="unknown_method")
        if answer.error is not None:
            raise ApiError(500, f"rank {rank}: {answer.error}", code="extension_failed")
    return [answer.value for answer in answers]
