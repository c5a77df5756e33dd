"""POST /update_weights_from_disk and GET /get_weight_version, as SGLang has them: new weights without a restart.

Served where `model.weight_update_paths` names folders for checkpoints.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.messages import ErrorKind
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.requests.adapters import is_allowed
from appliance.requests.errors import ApiError, invalid
from appliance.server.admin.asking import stats_of
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.http.callers import check_unlimited
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError


class UpdateFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """sha256: the digest that the checkpoint has to have. The others are SGLang's."""

    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True
    weight_version: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    sha256: str | None = None


_FIELDS = json_decoder(UpdateFields)


async def update_weights_from_disk(state: ServerState, request: Request) -> Response:
    """Replaces the weights by those of a checkpoint on this machine; answers when they serve."""
    fields = await read_fields(state.plan.serving, request, _FIELDS)
    check_unlimited()
    if fields.load_format not in (None, "auto"):
        raise invalid("load_format", "load_format is found from the files; leave it out, or write auto")
    path = Path(fields.model_path)
    if not path.is_absolute():
        raise invalid("model_path", "model_path must be the absolute path of a checkpoint on the server's machine")
    if not is_allowed(path, state.plan.serving.routes.weight_update_paths):
        message = "weights may not be read from there; hint: model.weight_update_paths"
        raise ApiError(403, message, param="model_path", code="path_not_allowed")
    try:
        found = await state.client.replace_weights(
            WeightUpdate(
                path=str(path),
                sha256=fields.sha256,
                abort=fields.abort_all_requests,
                flush_cache=fields.flush_cache,
                label=fields.weight_version,
            )
        )
    except RequestFailedError as error:
        if error.kind is not ErrorKind.INTERNAL:
            raise
        message = f"the weights stay as they are: {error}"
        raise ApiError(400, message, param="model_path", code="weights_refused") from error
    body = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
    return _answer({**body, **_of_all(state, found)})


async def get_weight_version(state: ServerState, request: Request) -> Response:
    """The version of the weights that serve now: 0 are those of the plan."""
    told = await stats_of(state.client.numbered_engines)
    return _answer(_of_all(state, {number: each.weights or WeightStats() for number, each in told.items()}))


def _of_all(state: ServerState, found: Mapping[int, WeightStats]) -> dict[str, object]:
    """Tells what the first engine has, and of several replicas what each has, by its number."""
    first = _told(next(iter(found.values())))
    if state.plan.parallel.replicas == 1:
        return first
    return {**first, "engines": {str(number): _told(each) for number, each in found.items()}}


def _told(stats: WeightStats) -> dict[str, object]:
    return {
        "weight_version": stats.label or str(stats.version),
        "version": stats.version,
        "sha256": stats.digest,
        "staging_s": round(stats.staging_s, 3),
        "waiting_s": round(stats.waiting_s, 3),
        "commit_s": round(stats.commit_s, 3),
    }


def _answer(body: dict[str, object]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
