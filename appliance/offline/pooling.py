"""Vectors, classes and scores of pairs, from models that pool."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from appliance.offline.adapters import OfflineAdapters
from appliance.offline.errors import InvalidRequestError
from appliance.offline.outputs import PoolingOutput, PoolingRequestOutput
from appliance.offline.params import LoRARequest, PoolingParams
from appliance.offline.prompts import Given
from appliance.offline.session import Session, gathered
from appliance.plan.types import EnginePlan, PoolingPlan
from appliance.requests.pooling.fields import InputFields, PooledFields
from appliance.requests.pooling.pairs import score_pairs
from appliance.requests.pooling.run import Pooled, PoolingWork, inputs_of, pooling_of, run, tasks_of
from appliance.requests.pooling.vectors import check_dimensions
from appliance.service.requests import TextOutput, TextRequest
from appliance.service.streams import merged

_UNPOOLED = "this model generates, and pools nothing"


def check_task(plan: EnginePlan, method: str, task: str) -> PoolingPlan:
    """Returns how the model pools. Raises InvalidRequestError if it does not do `task` for `method`."""
    if plan.model.pooling is None:
        raise InvalidRequestError(
            f"LLM.{method} is for models that pool, and {_UNPOOLED}",
            hint=f"LLM(model, convert={'embed' if task == 'embed' else 'classify'!r}), where its weights are for that",
        )
    pooling = pooling_of(plan)
    tasks = tasks_of(pooling)
    if task not in tasks:
        raise InvalidRequestError(f"LLM.{method} needs a model that does {task}; this one does {', '.join(tasks)}")
    return pooling


def own_tasks(plan: EnginePlan) -> tuple[str, ...]:
    """Returns the names of a plan's pooling tasks; none of a model that generates."""
    return () if plan.model.pooling is None else tasks_of(plan.model.pooling)


async def pool(
    session: Session,
    prompts: Sequence[Given],
    params: Sequence[PoolingParams],
    loras: Sequence[LoRARequest | None],
    tick: Callable[[], None],
) -> list[PoolingRequestOutput]:
    """Returns f32 [numbers] of each prompt, or [tokens, numbers] of a model that pools each token. Raises ApiError."""
    pooling = pooling_of(session.plan)
    for each in params:
        if each.task is not None:
            check_task(session.plan, "encode", each.task)
        check_dimensions(pooling, each.dimensions, "dimensions")
    of_tokens = pooling.kind == "all"

    async def one(prompt: Given, asked: PoolingParams, lora: LoRARequest | None) -> PoolingRequestOutput:
        work, fields = _work(session, lora), _fields(prompt, asked)
        inputs = await inputs_of(work, fields)
        pooled: Pooled = await run(work, inputs, fields, asked.dimensions)
        tick()
        [vectors] = pooled.vectors
        data = PoolingOutput(vectors if of_tokens else vectors[0])
        return PoolingRequestOutput(pooled.request_id, data, inputs[0].token_ids)

    return await gathered([one(*each) for each in zip(prompts, params, loras, strict=True)])


async def score(
    session: Session, pairs: Sequence[tuple[str, str]], params: PoolingParams, lora: LoRARequest | None
) -> list[float]:
    """Returns the score of each pair of texts. Raises ApiError."""
    if params.dimensions is not None or params.task not in (None, "score"):
        raise InvalidRequestError("scores have no dimensions, and no other task", param="pooling_params")
    fields = PooledFields(
        truncate_prompt_tokens=params.truncate_prompt_tokens, use_activation=None if params.wants_activation else False
    )
    scored = await score_pairs(_work(session, lora), pairs, fields)
    return scored.scores


def read_pairs(first: Any, second: Any) -> list[tuple[str, str]]:
    """Returns pairs of one text with each of several, or of texts one by one. Raises InvalidRequestError."""
    left, right = _texts(first, "data_1"), _texts(second, "data_2")
    if len(left) == 1:
        left = left * len(right)
    if len(left) != len(right) or not left:
        raise InvalidRequestError(
            f"data_1 has {len(left)} texts and data_2 {len(right)}: one, or as many, are expected"
        )
    return list(zip(left, right, strict=True))


def _texts(given: Any, name: str) -> list[str]:
    several = [given] if isinstance(given, str | Mapping) else list(given)
    found: list[Any] = [each.get("prompt") if isinstance(each, Mapping) else each for each in several]
    if not all(isinstance(each, str) for each in found):
        raise InvalidRequestError(f"{name} is a text, or a list of texts", param=name)
    return found


def _fields(prompt: Given, params: PoolingParams) -> InputFields:
    if prompt.embeds is not None:
        raise InvalidRequestError("prompts of embeddings are for models that generate", param="prompt_embeds")
    return InputFields(
        input=prompt.text if prompt.token_ids is None else list(prompt.token_ids),
        truncate_prompt_tokens=params.truncate_prompt_tokens if prompt.truncate is None else prompt.truncate,
        add_special_tokens=None if prompt.add_special_tokens else False,
        use_activation=None if params.wants_activation else False,
    )


def _work(session: Session, lora: LoRARequest | None) -> PoolingWork:
    async def collect(requests: Sequence[TextRequest]) -> Mapping[int, TextOutput]:
        adapters: OfflineAdapters = session.adapters
        adapter = await adapters.name_of(lora)
        asked = [replace(each, adapter=adapter) for each in requests]
        found: dict[int, list[TextOutput]] = {}
        with session.engines.client.generate(*asked, is_streamed=False) as stream:
            async for outputs in stream:
                for output in outputs:
                    found.setdefault(output.index, []).append(output)
        return {index: merged(outputs)[0] for index, outputs in found.items()}

    return PoolingWork(
        plan=session.plan,
        tokenizer=session.tokenizer,
        prompts=session.wishes.prompts,
        sampling=session.wishes.rules,
        collect=collect,
        request_id=lambda given: given or session.new_id(),
    )
