"""POST /v1/embeddings and POST /pooling."""

import time
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import invalid
from appliance.requests.pooling.fields import EmbeddingFields, InputFields, PoolingFields
from appliance.requests.pooling.run import Pooled, inputs_of, pooling_of, run, tasks_of
from appliance.requests.pooling.vectors import Floats, as_base64, check_dimensions, refuse_task
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.pooling.work import work_of
from appliance.server.state import ServerState

_EMBEDDINGS = json_decoder(EmbeddingFields)
_POOLING = json_decoder(PoolingFields)
_OTHER_ROUTES = "/classify, /score, /rerank and /pooling"


async def create_embeddings(state: ServerState, request: Request) -> Response:
    """The vector of each input, as numbers or as base64 of f32, little-endian."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _EMBEDDINGS)
    state.check_model(fields.model)
    pooling = pooling_of(state.plan)
    if pooling.task != "embed":
        raise refuse_task(pooling, "embed", _OTHER_ROUTES)
    if pooling.kind == "all":
        message = "this model gives a vector of each token, which /pooling answers"
        raise invalid("model", message, "unsupported_task")
    pooled = await _run(state, request, fields)
    as_text = fields.encoding_format == "base64"
    vectors = [vectors[0] for vectors in pooled.vectors]
    data = [
        {"object": "embedding", "index": index, "embedding": as_base64(vector) if as_text else vector}
        for index, vector in enumerate(vectors)
    ]
    return answer(state, "embd", pooled, data)


async def pool(state: ServerState, request: Request) -> Response:
    """What the model pools of each input: a vector, or one of each token."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _POOLING)
    state.check_model(fields.model)
    pooling = pooling_of(state.plan)
    tasks = tasks_of(pooling)
    if fields.task is not None and fields.task not in tasks:
        message = f"task is {fields.task[:40]!r}; this model does {', '.join(tasks)}"
        raise invalid("task", message, "unsupported_task")
    pooled = await _run(state, request, fields)
    of_tokens = pooling.kind == "all"
    data = [
        {"object": "pooling", "index": index, "data": _data(vectors, fields, of_tokens=of_tokens)}
        for index, vectors in enumerate(pooled.vectors)
    ]
    return answer(state, "pool", pooled, data)


def answer(state: ServerState, prefix: str, pooled: Pooled, data: list[dict[str, Any]]) -> Response:
    """Makes the answer of a list of results."""
    body = {
        "id": f"{prefix}-{pooled.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": state.model_name,
        "data": data,
        "usage": {"prompt_tokens": pooled.num_tokens, "total_tokens": pooled.num_tokens},
    }
    return Response(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


async def _run(state: ServerState, request: Request, fields: InputFields) -> Pooled:
    check_dimensions(pooling_of(state.plan), fields.dimensions, "dimensions")
    work = work_of(state, request)
    return await run(work, await inputs_of(work, fields), fields, fields.dimensions)


def _data(vectors: Floats, fields: PoolingFields, *, of_tokens: bool) -> Any:
    shown = vectors if of_tokens else vectors[0]
    return as_base64(shown) if fields.encoding_format == "base64" else shown
