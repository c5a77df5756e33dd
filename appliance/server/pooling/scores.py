"""POST /score, POST /rerank and POST /classify."""

import time
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import invalid
from appliance.requests.pooling.fields import ClassifyFields, InputFields, RerankFields, ScoreFields, Texts
from appliance.requests.pooling.pairs import Pair, score_pairs
from appliance.requests.pooling.run import MAX_INPUTS, inputs_of, pooling_of, run
from appliance.requests.pooling.vectors import refuse_task
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.pooling.cohere import meta
from appliance.server.pooling.embeddings import answer
from appliance.server.pooling.work import work_of
from appliance.server.state import ServerState

_SCORE = json_decoder(ScoreFields)
_RERANK = json_decoder(RerankFields)
_CLASSIFY = json_decoder(ClassifyFields)
_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))


async def score(state: ServerState, request: Request) -> Response:
    """The score of each pair of texts."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _SCORE)
    state.check_model(fields.model)
    scored = await score_pairs(work_of(state, request), _pairs(fields), fields)
    body = {
        "id": f"score-{scored.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": state.model_name,
        "data": [{"index": index, "object": "score", "score": each} for index, each in enumerate(scored.scores)],
        "usage": {"prompt_tokens": scored.num_tokens, "total_tokens": scored.num_tokens},
    }
    return Response(orjson.dumps(body), media_type="application/json")


async def rerank(state: ServerState, request: Request) -> Response:
    """Documents by their score with a query, the best first; `index` is the place of each in the request."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _RERANK)
    state.check_model(fields.model)
    texts = [each if isinstance(each, str) else each.text for each in fields.documents]
    _check_number(len(texts), "documents")
    if fields.top_n is not None and fields.top_n < 1:
        raise invalid("top_n", f"top_n is {fields.top_n}; it must be at least 1", "invalid_value")
    most = fields.max_tokens_per_doc
    if most is not None and most < 1:
        raise invalid("max_tokens_per_doc", f"max_tokens_per_doc is {most}; it must be at least 1", "invalid_value")
    scored = await score_pairs(work_of(state, request), [(fields.query, text) for text in texts], fields, most)
    order = sorted(range(len(texts)), key=lambda index: (-scored.scores[index], index))
    results = [_result(index, scored.scores[index], texts if fields.return_documents else None) for index in order]
    body = {
        "id": f"rerank-{scored.request_id}",
        "model": state.model_name,
        "usage": {"prompt_tokens": scored.num_tokens, "total_tokens": scored.num_tokens},
        "results": results[: fields.top_n],
        "meta": meta({"search_units": 1}),
    }
    return Response(orjson.dumps(body), media_type="application/json")


async def classify(state: ServerState, request: Request) -> Response:
    """The classes of each input, and the label of the most likely one."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _CLASSIFY)
    state.check_model(fields.model)
    pooling = pooling_of(state.plan)
    if pooling.task == "embed":
        raise refuse_task(pooling, "classify", "/v1/embeddings, /v2/embed, /score, /rerank and /pooling")
    if pooling.kind == "all":
        raise invalid("model", "this model classifies each token, which /pooling answers", "unsupported_task")
    asked = InputFields(
        input=fields.input,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        add_special_tokens=fields.add_special_tokens,
    )
    work = work_of(state, request)
    pooled = await run(work, await inputs_of(work, asked), fields)
    data = [_class(index, vectors[0], pooling.labels) for index, vectors in enumerate(pooled.vectors)]
    return answer(state, "classify", pooled, data)


def _class(index: int, probabilities: Any, labels: tuple[str, ...]) -> dict[str, Any]:
    best = int(probabilities.argmax())
    label = labels[best] if best < len(labels) else None
    return {"index": index, "label": label, "probs": probabilities, "num_classes": len(probabilities)}


def _result(index: int, relevance: float, texts: list[str] | None) -> dict[str, Any]:
    document = {} if texts is None else {"document": {"text": texts[index]}}
    return {"index": index, **document, "relevance_score": relevance}


def _pairs(fields: ScoreFields) -> list[Pair]:
    """Returns the pairs: one text against each of several, or texts one by one. Raises ApiError 400."""
    given = [sides for sides in _SIDES if any(getattr(fields, name) is not None for name in sides)]
    if len(given) != 1 or any(getattr(fields, name) is None for name in given[0]):
        raise invalid("text_1", "exactly text_1 and text_2 are needed, or queries and documents", "invalid_value")
    first, second = (_listed(getattr(fields, name), name) for name in given[0])
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        message = f"{given[0][0]} has {len(first)} texts and {given[0][1]} {len(second)}: one, or as many, are expected"
        raise invalid(given[0][0], message, "invalid_value")
    return list(zip(first, second, strict=True))


def _listed(texts: Texts, field: str) -> list[str]:
    found = [texts] if isinstance(texts, str) else texts
    _check_number(len(found), field)
    return found


def _check_number(count: int, field: str) -> None:
    if not 1 <= count <= MAX_INPUTS:
        raise invalid(field, f"{field} has {count} texts; 1 to {MAX_INPUTS} are allowed", "invalid_value")
