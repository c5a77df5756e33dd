"""POST /generative_scoring: how likely the model is to go on with one token rather than others, item by item."""

import math
import time
from dataclasses import replace

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.messages import SamplingParams
from appliance.plan.types import ModelPlan
from appliance.requests.errors import ApiError, as_api_error, invalid
from appliance.requests.fields import CompletionFields
from appliance.requests.sampling import SamplingRules
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.output.generation import collect, new_request_id
from appliance.server.state import ServerState
from appliance.service.errors import RequestFailedError
from appliance.service.requests import TextOptions, TextRequest

MAX_LABELS = 128
MAX_REQUESTS = 4096


class ScoringFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """query and items: texts, or token ids. The prompt of an item is the query and then the item."""

    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: list[int]
    model: str | None = None
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    request_id: str | None = None
    user: str | None = None


_DECODER = json_decoder(ScoringFields)


async def score_items(state: ServerState, request: Request) -> Response:
    """The score is the first label's probability: among the labels, or among all tokens without apply_softmax."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    await state.find_model(fields.model)
    _check(state.plan.model, fields)
    prompts = [await _prompt(state, fields, item) for item in fields.items]
    request_id = new_request_id(request, state.plan.serving.http, fields.request_id)
    adapter = state.adapter_of(fields.model)
    requests = [
        replace(_label_request(state.sampling, fields, request_id, prompt, label), adapter=adapter)
        for prompt in prompts
        for label in fields.label_token_ids
    ]
    try:
        outputs = await collect(state, request, requests)
    except RequestFailedError as failure:
        raise _named(failure) from failure
    found = [outputs[index].logprobs if index in outputs else None for index in range(len(requests))]
    chosen = [at[0].logprobs[0] if at else -math.inf for at in found]
    width = len(fields.label_token_ids)
    scores = [_score(chosen[first : first + width], fields) for first in range(0, len(chosen), width)]
    num_tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
    body = {
        "id": f"generative-scoring-{request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": adapter or state.model_name,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": usage,
    }
    return Response(orjson.dumps(body), media_type="application/json")


def _check(model: ModelPlan, fields: ScoringFields) -> None:
    labels = fields.label_token_ids
    if not 1 <= len(labels) <= MAX_LABELS or len(set(labels)) != len(labels):
        message = f"label_token_ids must be 1 to {MAX_LABELS} different token ids"
        raise invalid("label_token_ids", message, "invalid_value")
    texts = {"label_token_ids": labels, "query": fields.query}
    texts |= {f"items[{place}]": item for place, item in enumerate(fields.items)}
    for where, ids in texts.items():
        for token_id in () if isinstance(ids, str) else ids:
            if not 0 <= token_id < 1 << 31:
                raise invalid(where, f"{where} has {token_id}, which no vocabulary has", "invalid_value")
    if not fields.items:
        raise invalid("items", "items is empty", "invalid_value")
    if len(fields.items) * len(labels) > MAX_REQUESTS:
        message = f"items times labels are {len(fields.items) * len(labels)}; {MAX_REQUESTS} are allowed"
        raise invalid("items", message, "invalid_value")
    if model.logprobs_mode != "raw_logprobs":
        raise invalid("label_token_ids", "scoring needs model.logprobs_mode raw_logprobs", "not_allowed")


async def _prompt(state: ServerState, fields: ScoringFields, item: str | list[int]) -> list[int]:
    """Texts are joined and then tokenized together; beside token ids, each text is tokenized alone."""
    first, second = (item, fields.query) if fields.item_first else (fields.query, item)
    if isinstance(first, str) and isinstance(second, str):
        prompt: str | list[str | int | list[int]] = first + second
    else:
        ids = [state.tokenizer.encode(each, add_special_tokens=False) if isinstance(each, str) else each
               for each in (first, second)]  # fmt: skip
        prompt = [*ids[0], *ids[1]]
    if not prompt:
        raise invalid("items", "an item and the query are both empty", "invalid_value")
    asked = CompletionFields(
        prompt=prompt,
        add_special_tokens=fields.add_special_tokens,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
    )
    [read] = await state.prompts.completion(asked)
    token_ids = read.token_ids
    context = state.plan.model.max_model_len
    if len(token_ids) >= context:
        message = f"an item has {len(token_ids)} tokens with the query; this model's context length is {context} tokens"
        raise invalid("items", message, "context_length_exceeded")
    return token_ids


def _label_request(
    rules: SamplingRules, fields: ScoringFields, request_id: str, prompt: list[int], label: int
) -> TextRequest:
    """One token, which can only be the label: its log-probability is the model's own. The prompt is cached."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, allowed_token_ids=(label,), logprobs=0)
    options = CompletionFields(prompt="", priority=fields.priority)
    return TextRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        text=TextOptions(detokenize=False),
        priority=rules.check_priority(options),
    )


def _score(logprobs: list[float], fields: ScoringFields) -> float:
    if not fields.apply_softmax:
        return math.exp(logprobs[0])
    top = max(logprobs)
    if top == -math.inf:
        return 1.0 / len(logprobs)
    weights = [math.exp(logprob - top) for logprob in logprobs]
    return weights[0] / sum(weights)


def _named(failure: RequestFailedError) -> ApiError:
    error: ApiError = as_api_error(failure)
    if error.param == "allowed_token_ids":
        error.param = "label_token_ids"
        error.message = error.message.replace("allowed_token_ids", "label_token_ids")
    return error
