"""POST /collective_rpc: vLLM's route, which calls a method of the operator's own on every rank. Served with `debug`."""

import asyncio
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.extension_messages import MOST_CALL_S, ExtensionAnswer, ExtensionCall
from appliance.requests.errors import ApiError, invalid
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.state import ServerState


class CallFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """timeout: seconds for each rank; null is as long as may be."""

    method: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


_FIELDS = json_decoder(CallFields)
_ANSWERS = msgspec.msgpack.Decoder(list[ExtensionAnswer])


async def call_ranks(state: ServerState, request: Request) -> Response:
    """Answers {"results": [...]}: what the method returned on each rank, in order; of several replicas one after the
    other."""
    fields = await read_fields(state.plan.serving, request, _FIELDS)
    parallel = state.plan.parallel
    if parallel.worker_extension_cls is None:
        raise ApiError(400, "no class is there to call; hint: parallelism.worker_extension_cls", code="no_extension")
    if not fields.method:
        raise invalid("method", "method is the name of a method of parallelism.worker_extension_cls")
    most_s = min(MOST_CALL_S, parallel.distributed_timeout_s / 2)  # the ranks wait that long for one another
    timeout_s = most_s if fields.timeout is None else fields.timeout
    if not 0 < timeout_s <= most_s:
        raise invalid("timeout", f"timeout is {timeout_s:g}; it must be above 0 and at most {most_s:g} seconds")
    call = ExtensionCall(fields.method, fields.args, fields.kwargs, timeout_s)
    of_engines = await asyncio.gather(*(each.call_extension(call) for each in state.client.engines))
    answers = [answer for engine in of_engines for answer in _ANSWERS.decode(engine)]
    for rank, answer in enumerate(answers):
        if answer.is_unknown:
            raise ApiError(404, answer.error or "", param="method", code="unknown_method")
        if answer.error is not None:
            raise ApiError(500, f"rank {rank}: {answer.error}", code="extension_failed")
    return Response(orjson.dumps({"results": [answer.value for answer in answers]}), media_type="application/json")
