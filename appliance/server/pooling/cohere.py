"""POST /v2/embed and its first version, /v1/embed, as Cohere's clients ask for embeddings."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.plan.types import PoolingPlan
from appliance.requests.errors import invalid, not_in_this_version
from appliance.requests.pooling.fields import EmbedFields, PooledFields
from appliance.requests.pooling.run import MAX_INPUTS, pooling_of, prompt_text, run, tokenized
from appliance.requests.pooling.vectors import check_dimensions, refuse_task, typed
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.pooling.work import work_of
from appliance.server.state import ServerState
from appliance.text.inputs import CutSide

_DECODER = json_decoder(EmbedFields)
_SIDES: Final[Mapping[str, CutSide | None]] = {"END": "end", "START": "start", "NONE": None}
_FIRST_VERSION: Final = "/v1/embed"
# The prompts of sentence-transformers that stand for an input type, in the order in which they are looked for.
_PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


async def embed(state: ServerState, request: Request) -> Response:
    """The vectors of texts, in each type that is asked for; the first version of the API has a list if none is."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    state.check_model(fields.model)
    pooling = pooling_of(state.plan)
    if pooling.task != "embed" or pooling.kind == "all":
        raise refuse_task(pooling, "embed", "/pooling")
    texts = _texts(fields)
    check_dimensions(pooling, fields.output_dimension, "output_dimension")
    prompt = _prompt(pooling, fields.input_type)
    context = state.plan.model.max_model_len
    most = context if fields.max_tokens is None else min(context, fields.max_tokens)
    if most < 1:
        raise invalid("max_tokens", f"max_tokens is {fields.max_tokens}; it must be at least 1", "invalid_value")
    work = work_of(state, request)
    inputs = await tokenized(work, [prompt + text for text in texts], most, _SIDES[fields.truncate or "END"], "texts")
    pooled = await run(work, inputs, PooledFields(priority=fields.priority), fields.output_dimension)
    vectors = np.concatenate(pooled.vectors)
    by_type = fields.embedding_types or ([] if request.url.path == _FIRST_VERSION else ["float"])
    embeddings = {kind: typed(vectors, kind) for kind in dict.fromkeys(by_type)}
    body = {
        "id": str(uuid.uuid4()),
        "embeddings": embeddings or vectors,
        "texts": texts,
        "meta": meta({"input_tokens": pooled.num_tokens}),
        "response_type": "embeddings_by_type" if embeddings else "embeddings_floats",
    }
    return Response(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def meta(units: dict[str, int]) -> dict[str, Any]:
    """Returns what Cohere says beside its results."""
    return {"api_version": {"version": "2"}, "billed_units": units}


def _texts(fields: EmbedFields) -> list[str]:
    if fields.images:
        raise not_in_this_version("images")
    if (fields.texts is None) == (fields.inputs is None):
        raise invalid("texts", "exactly one of texts and inputs is needed", "invalid_value")
    texts = fields.texts if fields.texts is not None else [_text(each) for each in fields.inputs or []]
    if not 1 <= len(texts) <= MAX_INPUTS:
        raise invalid("texts", f"{len(texts)} texts; 1 to {MAX_INPUTS} are allowed", "invalid_value")
    return texts


def _text(given: Any) -> str:
    """Returns the text of an input with content parts, which may be nothing but texts."""
    parts = given.get("content") if isinstance(given, dict) else None
    if not isinstance(parts, list) or not all(_is_text(part) for part in parts):
        raise invalid("inputs", "inputs with other parts than texts are not in this version", "unsupported_parameter")
    return "".join(part["text"] for part in parts)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _prompt(pooling: PoolingPlan, input_type: str | None) -> str:
    """Returns the text before an input of this type. A model without any prompts needs none."""
    if input_type is None or not pooling.prompts:
        return prompt_text(pooling, None, "input_type")
    found = next((name for name in _PROMPTS.get(input_type, ()) if name in pooling.prompts), None)
    return prompt_text(pooling, found or input_type, "input_type")
