"""POST and GET /v1/batches, GET /v1/batches/{id}, POST /v1/batches/{id}/cancel."""

import asyncio
import os
import time
import uuid
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.jobs.lines import GENERATING, POOLING
from appliance.requests.errors import ApiError, invalid
from appliance.server.batches.files import find_file
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.http.callers import owner
from appliance.server.http.paging import list_object, read_page
from appliance.server.state import ServerState
from appliance.store.batches import BatchRecord
from appliance.store.files import StoreFullError
from appliance.store.store import Store

WINDOW, _WINDOW_S = "24h", 86400
_MAX_METADATA = 16


class OutputExpiry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class BatchFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


_DECODER = json_decoder(BatchFields)


async def create_batch(state: ServerState, request: Request) -> Response:
    fields = await read_fields(state.plan.serving, request, _DECODER)
    _check(fields, pools=state.plan.model.pooling is not None)
    source = find_file(state.store.files, fields.input_file_id, "input_file_id")
    if source.purpose != "batch":
        raise invalid("input_file_id", f"the file {source.id!r} is for {source.purpose!r}, not for batch")
    now = int(time.time())
    batch = BatchRecord(
        id=f"batch_{uuid.uuid4().hex}",
        owner=owner(),
        endpoint=fields.endpoint,
        input_file_id=source.id,
        completion_window=fields.completion_window,
        created_at=now,
        expires_at=now + _WINDOW_S,
        output_lifetime_s=float(fields.output_expires_after.seconds) if fields.output_expires_after else None,
        metadata=fields.metadata,
        model=state.model_name,
    )
    try:
        await asyncio.to_thread(_keep, state.store, batch)
    except StoreFullError as error:
        raise ApiError(429, str(error), code="store_full") from error
    state.open.batch_wanted.set()
    return _json(batch_object(batch))


async def list_batches(state: ServerState, request: Request) -> Response:
    found, has_more = state.store.batches.list(owner(), read_page(request.query_params))
    return _json(list_object([batch_object(each) for each in found], has_more=has_more))


async def get_batch(state: ServerState, request: Request) -> Response:
    batch_id: str = request.path_params["batch_id"]
    return _json(batch_object(_found(state.store.batches.get(owner(), batch_id), batch_id)))


async def cancel_batch(state: ServerState, request: Request) -> Response:
    """Cancels a batch and keeps what is answered by then. A batch that has ended stays as it is."""
    batch_id: str = request.path_params["batch_id"]
    return _json(batch_object(_found(state.store.batches.cancel(owner(), batch_id), batch_id)))


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    names = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at")
    errors = {"object": "list", "data": batch.errors} if batch.errors else None
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
        **{name: batch.times.get(name) for name in (*names, "cancelled_at")},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
    }


def _check(fields: BatchFields, *, pools: bool) -> None:
    served = POOLING if pools else GENERATING
    if fields.endpoint not in served:
        message = f"endpoint is {fields.endpoint[:60]!r}; this model has {', '.join(served)}"
        raise invalid("endpoint", message, "invalid_value")
    if fields.completion_window != WINDOW:
        message = f"completion_window is {fields.completion_window[:20]!r}; it must be {WINDOW!r}"
        raise invalid("completion_window", message, "invalid_value")
    if len(fields.metadata or {}) > _MAX_METADATA:
        raise invalid("metadata", f"metadata has more than {_MAX_METADATA} entries", "invalid_value")
    expiry = fields.output_expires_after
    if expiry is not None and (expiry.anchor != "created_at" or not 3600 <= expiry.seconds <= 30 * 86400):
        message = "output_expires_after needs the anchor created_at and from 3600 to 2592000 seconds"
        raise invalid("output_expires_after", message, "invalid_value")


def _keep(store: Store, batch: BatchRecord) -> None:
    """The input is linked, so that a batch ends even when its file is deleted meanwhile."""
    work = store.work_folder(batch.id)
    work.mkdir(parents=True)
    os.link(store.files.path(batch.input_file_id), work / "input.jsonl")
    try:
        store.batches.add(batch)
    except StoreFullError:
        store.remove_work(batch.id)
        raise


def _found(batch: BatchRecord | None, batch_id: str) -> BatchRecord:
    if batch is None:
        message = f"there is no batch {batch_id[:100]!r}, or it is another key's"
        raise ApiError(404, message, param="batch_id", code="not_found")
    return batch


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
