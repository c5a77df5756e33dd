"""Beam search from Python: vLLM's parameters and results on the service's search."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import msgspec

from appliance.offline.answers import position_logprobs
from appliance.offline.errors import InvalidRequestError
from appliance.offline.outputs import BeamSearchOutput, BeamSearchSequence
from appliance.offline.params import BeamSearchParams, LoRARequest, SamplingParams
from appliance.offline.prompts import Given
from appliance.offline.session import Session, gathered
from appliance.offline.wishes import ReadyRequest, Wish
from appliance.service.beam_search import BeamRules, BeamStream, beam_problem
from appliance.service.requests import TextOutput


async def beam_search(
    session: Session,
    prompts: Sequence[Given],
    params: BeamSearchParams,
    loras: Sequence[LoRARequest | None],
    most: int | None,
    tick: Callable[[], None],
) -> list[BeamSearchOutput]:
    """Searches for each prompt; at most `most` at once. Raises ApiError, InvalidRequestError, RequestFailedError."""
    _check(session, params)
    sampling = SamplingParams(max_tokens=params.max_tokens, ignore_eos=params.ignore_eos)
    wishes = [
        Wish(request_id=session.new_id(), prompt=prompt, params=sampling, lora=lora)
        for prompt, lora in zip(prompts, loras, strict=True)
    ]
    ready = [await session.wishes.asked(each) for each in wishes]
    places = nullcontext() if most is None else asyncio.Semaphore(most)

    async def one(each: ReadyRequest) -> BeamSearchOutput:
        async with places:
            found = await _searched(session, each, params)
        tick()
        return found

    return await gathered([one(each) for each in ready])


async def _searched(session: Session, ready: ReadyRequest, params: BeamSearchParams) -> BeamSearchOutput:
    request = ready.request
    sampling = msgspec.structs.replace(request.sampling, n=params.beam_width, logprobs=0)
    adapter = await session.adapters.name_of(ready.wish.lora)
    wide = replace(request, sampling=sampling, adapter=adapter)
    stream = BeamStream(session.engines.client, session.text, [wide], [_rules(session, params, sampling.max_tokens)])
    found = [output async for outputs in stream for output in outputs]
    return BeamSearchOutput([_sequence(session, ready, params, output) for output in found])


def _sequence(
    session: Session, ready: ReadyRequest, params: BeamSearchParams, output: TextOutput
) -> BeamSearchSequence:
    """An end token is in the sequence only where it was asked for, as in vLLM; its log-probability always counts."""
    has_end = output.finish_reason == "stop" and not params.include_stop_str_in_output
    tokens = [*ready.request.known_token_ids, *(output.token_ids[:-1] if has_end else output.token_ids)]
    logprobs = output.logprobs or []
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=[position_logprobs(each, session.tokenizer) for each in logprobs],
        cum_logprob=sum(each.logprobs[0] for each in logprobs),
        text=session.tokenizer.decode(tokens, skip_special_tokens=False),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        lora_request=ready.wish.lora,
    )


def _rules(session: Session, params: BeamSearchParams, max_tokens: int) -> BeamRules:
    ends = frozenset() if params.ignore_eos else frozenset(session.text.eos_token_ids)
    return BeamRules(width=params.beam_width, max_tokens=max_tokens, end_ids=ends, length_penalty=params.length_penalty)


def _check(session: Session, params: BeamSearchParams) -> None:
    model = session.plan.model
    if (problem := beam_problem(model)) is not None:
        raise InvalidRequestError(problem)
    needed = _rules(session, params, params.max_tokens).num_candidates
    if model.max_logprobs != -1 and needed > model.max_logprobs:
        raise InvalidRequestError(
            f"{params.beam_width} beams need {needed} candidates a step, and max_logprobs is {model.max_logprobs}",
            param="beam_width",
            hint=f"LLM(model, max_logprobs={needed})",
        )
