"""From the inputs of a request to the vectors of the engine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from appliance.engine.messages import SamplingParams
from appliance.plan.types import EnginePlan, PoolingPlan
from appliance.requests import degraded
from appliance.requests.errors import invalid
from appliance.requests.fields import ChatFields, CompletionFields
from appliance.requests.pooling.fields import InputFields, PooledFields
from appliance.requests.pooling.vectors import Floats, activated, cut, in_chunks, joined, of_steps, read_vectors, scaled
from appliance.requests.prompts import PromptMaker
from appliance.requests.sampling import SamplingRules
from appliance.service.requests import TextOptions, TextOutput, TextRequest
from appliance.text.inputs import CutSide, Input, InputEncoder, TooLongError
from appliance.text.tokenizer import Tokenizer

MAX_INPUTS = 2048  # of one request, as OpenAI's
INLINE_CHARACTERS = 20_000  # about a millisecond of tokenization
_SAMPLING = SamplingParams(max_tokens=1)
_TEXT = TextOptions(detokenize=False)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingWork:
    """The rules by which a request's inputs are read, and the way to the engine.

    collect: sends requests, and returns their outputs by index. request_id: makes an id, of one that was given if any.
    """

    plan: EnginePlan
    tokenizer: Tokenizer
    prompts: PromptMaker
    sampling: SamplingRules
    collect: Callable[[Sequence[TextRequest]], Awaitable[Mapping[int, TextOutput]]]
    request_id: Callable[[str | None], str]


@dataclass(frozen=True, slots=True)
class Pooled:
    """The vectors [n, W] of each input (n is 1 unless all tokens are pooled), and the tokens of all inputs."""

    request_id: str
    vectors: list[Floats]
    num_tokens: int


def pooling_of(plan: EnginePlan) -> PoolingPlan:
    """Returns how the model pools. The gate of the routes has refused a model that does not."""
    assert plan.model.pooling is not None, "routes of models that pool are refused for others"
    return plan.model.pooling


def tasks_of(pooling: PoolingPlan) -> tuple[str, ...]:
    """Returns the names of a model's tasks, in vLLM's words."""
    own = "embed" if pooling.task == "embed" else "classify"
    return (f"token_{own}",) if pooling.kind == "all" else tuple(dict.fromkeys((own, pooling.task)))


def most_tokens(work: PoolingWork, fields: PooledFields) -> tuple[int, CutSide | None]:
    """Returns the most tokens of an input, and where a longer one is cut. Raises ApiError 400."""
    asked, context = fields.truncate_prompt_tokens, work.plan.model.max_model_len
    if asked is None:
        return max(context, pooling_of(work.plan).max_embed_len or 0), None
    if asked != -1 and not 1 <= asked <= context:
        message = f"truncate_prompt_tokens is {asked}; it must be -1 or from 1 to {context}"
        raise invalid("truncate_prompt_tokens", message, "invalid_value")
    return context if asked == -1 else asked, "end"


async def inputs_of(work: PoolingWork, fields: InputFields) -> list[Input]:
    """Returns the inputs of a request, tokenized. Raises ApiError 400."""
    if (fields.input is None) == (fields.messages is None):
        raise invalid("input", "exactly one of input and messages is needed", "invalid_value")
    prompt = prompt_text(pooling_of(work.plan), fields.prompt_name, "prompt_name")
    if fields.messages is not None:
        chat = ChatFields(
            messages=fields.messages,
            add_generation_prompt=fields.add_generation_prompt,
            chat_template_kwargs=fields.chat_template_kwargs,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            add_special_tokens=bool(fields.add_special_tokens),
        )
        return [Input((await work.prompts.chat(chat)).token_ids)]
    most, side = most_tokens(work, fields)
    texts = _split("" if fields.input is None else fields.input)
    has_special = fields.add_special_tokens is not False
    if not all(isinstance(each, str) for each in texts):
        if fields.add_special_tokens:
            raise invalid("add_special_tokens", "token ids are taken as they are; nothing is added", "invalid_value")
        return [_given(each, most, side) for each in texts]
    whole = [prompt + str(each) for each in texts]
    return await tokenized(work, whole, most, side, "input", has_special=has_special)


async def tokenized(
    work: PoolingWork, texts: Sequence[str], most: int, side: CutSide | None, field: str, *, has_special: bool = True
) -> list[Input]:
    """Returns texts with their special tokens, or without. Raises ApiError 400 for one that is too long and may not be
    cut."""
    encoder = InputEncoder(work.tokenizer)

    def encode() -> list[Input]:
        return [
            _encoded(encoder, text, most, side, f"{field}[{at}]", has_special=has_special)
            for at, text in enumerate(texts)
        ]

    return noted(await here_or_in_thread(encode, sum(map(len, texts))), work)


def noted(inputs: list[Input], work: PoolingWork) -> list[Input]:
    """Returns the inputs; that some were cut is noted, or refused if the plan says so."""
    if any(each.is_cut for each in inputs):
        wanted = work.plan.serving.requests.truncated_prompts
        if wanted == "error":
            message = "an input is too long, and this server cuts none"
            raise invalid("truncate_prompt_tokens", message, "prompt_truncated")
        degraded.note("truncated_prompt", is_logged=wanted == "warn")
    return inputs


def prompt_text(pooling: PoolingPlan, name: str | None, field: str) -> str:
    """Returns the text before an input. Raises ApiError 400 for a prompt that the model does not have."""
    if name is None:
        return pooling.prompts.get(pooling.default_prompt or "", "")
    if name not in pooling.prompts:
        known = ", ".join(pooling.prompts) or "none"
        raise invalid(field, f"the model has no prompt {name[:40]!r}; it has {known}", "invalid_value")
    return pooling.prompts[name]


async def run(
    work: PoolingWork,
    inputs: Sequence[Input],
    given: PooledFields,
    dimensions: int | None = None,
) -> Pooled:
    """Runs the inputs and returns their vectors, activated unless the request says otherwise. Raises ApiError."""
    pooling, most = pooling_of(work.plan), work.plan.model.max_model_len
    priority = work.sampling.check_priority(_with_priority(given.priority))
    request_id = work.request_id(given.request_id)
    chunks = [(number, chunk) for number, each in enumerate(inputs) for chunk in in_chunks(each.token_ids, most)]
    requests = [
        TextRequest(
            request_id=request_id,
            prompt_token_ids=chunk,
            sampling=_SAMPLING,
            text=_TEXT,
            priority=priority,
            second_segment=inputs[number].second_segment if pooling.has_token_types else None,
        )
        for number, chunk in chunks
    ]
    outputs = await work.collect(requests)
    parts: list[list[tuple[int, Floats]]] = [[] for _ in inputs]
    for index, (number, chunk) in enumerate(chunks):
        parts[number].append((len(chunk), read_vectors(outputs[index].vector or b"", pooling.width)))
    kind = pooling.activation if given.wants_activation else "none"
    whole = zip(parts, inputs, strict=True)
    raw = [of_steps(joined(part), each.token_ids, pooling) for part, each in whole]
    vectors = [activated(cut(scaled(each, pooling), dimensions), kind) for each in raw]
    return Pooled(request_id, vectors, sum(len(each.token_ids) for each in inputs))


async def here_or_in_thread(work: Callable[[], T], num_characters: int) -> T:
    return work() if num_characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def _with_priority(priority: int | None) -> CompletionFields:
    return CompletionFields(prompt="", priority=priority)


def _encoded(
    encoder: InputEncoder, text: str, most: int, side: CutSide | None, where: str, *, has_special: bool
) -> Input:
    try:
        found = encoder.one(text, most, side, has_special=has_special)
    except TooLongError as error:
        message = f"{where} {error}; truncate_prompt_tokens cuts longer inputs"
        raise invalid(where, message, "context_length_exceeded") from error
    if not found.token_ids:
        raise invalid(where, f"{where} is empty: it has no tokens", "invalid_value")
    return found


def _given(token_ids: str | list[int], most: int, side: CutSide | None) -> Input:
    assert not isinstance(token_ids, str), "texts and token ids do not mix"
    if len(token_ids) > most and side is None:
        message = f"input has {len(token_ids)} tokens; this model takes {most}"
        raise invalid("input", message, "context_length_exceeded")
    return Input(token_ids[:most], is_cut=len(token_ids) > most)


def _split(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Returns one input or several, all texts or all token ids. Raises ApiError 400."""
    if isinstance(given, str):
        return [given]
    kinds = {type(each) for each in given}
    if len(kinds) != 1:
        what = "is an empty list" if not given else "mixes texts with token ids"
        raise invalid("input", f"input {what}", "invalid_value")
    several = [[each for each in given if isinstance(each, int)]] if kinds == {int} else given
    if len(several) > MAX_INPUTS:
        raise invalid("input", f"input has {len(several)} inputs; {MAX_INPUTS} are allowed", "invalid_value")
    found: list[str | list[int]] = []
    for each in several:
        if isinstance(each, list) and (not each or any(not 0 <= token < 1 << 31 for token in each)):
            raise invalid("input", "input has an empty list, or a token id that no vocabulary has", "invalid_value")
        if not isinstance(each, int):
            found.append(each)
    return found
