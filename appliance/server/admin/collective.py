"""POST /collective_rpc: vLLM's route, which calls a method of the operator's own on every rank. Served with `debug`."""

from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests import extension
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.http.callers import check_unlimited
from appliance.server.state import ServerState


class CallFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """timeout: seconds for each rank; null is as long as may be."""

    method: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


_FIELDS = json_decoder(CallFields)


async def call_ranks(state: ServerState, request: Request) -> Response:
    """Answers {"results": [...]}: what the method returned on each rank, in order; of several replicas one after the
    other."""
    fields = await read_fields(state.plan.serving, request, _FIELDS)
    check_unlimited()
    call = extension.extension_call(state.plan.parallel, fields.method, fields.args, fields.kwargs, fields.timeout)
    results = await extension.call_ranks(state.client.engines, call)
    return Response(orjson.dumps({"results": results}), media_type="application/json")
