"""Search for the sequences of an answer: sampled, the best of several samples, or by beam search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from appliance.catalog.sampling import COLUMNS
from appliance.engine.messages import TokenLogprobs
from appliance.plan.types import EnginePlan
from appliance.requests.errors import ApiError, invalid
from appliance.requests.fields import GenerationFields
from appliance.requests.structured_fields import ResponseFormat
from appliance.server.output.answers import Answer, Tally
from appliance.service.beam_search import BeamRules, BeamStream, beam_problem
from appliance.service.requests import TextOutput, TextRequest
from appliance.service.service_client import ServiceClient
from appliance.service.streams import merged

# What beam search does not know -> values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{column.name: (None, column.neutral) for column in COLUMNS},
    "temperature": (None, 0.0, 1.0),
    "top_k": (None, 0, -1),
    "stop": (None, []),
    "min_tokens": (None, 0),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "logits_processors": (None, []),
    "prompt_logprobs": (None,),
    "response_format": (None, ResponseFormat(type="text")),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "structured_outputs": (None,),
    "tools": (None, []),
    "functions": (None, []),
}
_ONLY_BEAMS: dict[str, tuple[Any, ...]] = {"length_penalty": (None, 1.0), "early_stopping": (None, False)}


@dataclass(frozen=True, slots=True)
class Search:
    """width: sequences that are made, n of which are shown."""

    n: int
    width: int
    is_beams: bool

    @classmethod
    def of(cls, plan: EnginePlan, fields: GenerationFields) -> "Search":
        """Raises ApiError 400 for what does not go together."""
        n = 1 if fields.n is None else fields.n
        width = n if fields.best_of is None else fields.best_of
        most = plan.serving.limits.max_n
        if fields.best_of is not None and not n <= width <= most:
            message = f"best_of is {width}; it must be between n ({n}) and {most}"
            raise invalid("best_of", message, "invalid_value")
        is_beams = bool(fields.use_beam_search)
        if fields.stream and (is_beams or width > n):
            field = "use_beam_search" if is_beams else "best_of"
            raise invalid(
                field, f"{field} cannot be streamed: which sequence is best is known at its end", "invalid_value"
            )
        for name, neutral in (_NEUTRAL if is_beams else _ONLY_BEAMS).items():
            if getattr(fields, name, None) not in neutral:
                raise invalid(name, f"{name} {'has no use in' if is_beams else 'needs'} beam search", "invalid_value")
        if is_beams and (problem := beam_problem(plan.model)) is not None:
            raise invalid("use_beam_search", problem, "not_allowed")
        return cls(n, width, is_beams)

    def beams(
        self, plan: EnginePlan, client: ServiceClient, fields: GenerationFields, requests: Sequence[TextRequest]
    ) -> BeamStream | None:
        """The stream that answers the requests in the engine's place. Raises ApiError 400."""
        if not self.is_beams:
            return None
        ends = frozenset(fields.stop_token_ids or ())
        if not fields.ignore_eos:
            ends |= frozenset(client.text.eos_token_ids)
        penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
        if not -10.0 <= penalty <= 10.0:
            raise invalid(
                "length_penalty", f"length_penalty is {penalty}; it must be between -10 and 10", "invalid_value"
            )
        rules = [
            BeamRules(
                width=self.width,
                max_tokens=request.sampling.max_tokens,
                end_ids=ends,
                length_penalty=penalty,
                early_stopping=fields.early_stopping or False,
            )
            for request in requests
        ]
        most = plan.model.max_logprobs
        if most != -1 and rules[0].num_candidates > most:
            message = f"{self.width} beams with {len(ends)} end tokens need {rules[0].num_candidates} candidates a step"
            raise invalid("best_of" if fields.best_of else "n", f"{message}; {most} are allowed (max_logprobs)")
        return BeamStream(client, client.text, requests, rules)

    def sampled(self, requests: Sequence[TextRequest]) -> list[TextRequest]:
        """Returns the requests for the engine: `width` sequences, with logprobs to rank them."""
        if self.is_beams or self.width == self.n:
            return list(requests)
        return [
            replace(
                request,
                sampling=msgspec.structs.replace(
                    request.sampling, n=self.width, logprobs=request.sampling.logprobs or 0
                ),
            )
            for request in requests
        ]

    def chosen(self, answer: Answer, requests: Sequence[TextRequest]) -> Answer:
        """`requests` as they were before `sampled`."""
        if self.is_beams or self.width == self.n:
            return answer
        return BestOfAnswer(answer, self, shows_logprobs=requests[0].sampling.logprobs is not None)


class BestOfAnswer:
    """Keeps the n of `width` sequences of each prompt whose tokens are the most likely, on average. Never streamed."""

    def __init__(self, answer: Answer, search: Search, *, shows_logprobs: bool) -> None:
        self.tally: Tally = answer.tally
        self._answer = answer
        self._search = search
        self._shows_logprobs = shows_logprobs
        self._outputs: dict[int, list[TextOutput]] = {}

    def opening(self) -> bytes:
        return self._answer.opening()

    def event(self, output: TextOutput) -> bytes:
        raise AssertionError("the best of several is not streamed")

    def ending(self) -> bytes:
        return self._answer.ending()

    def failure(self, error: ApiError) -> bytes:
        return self._answer.failure(error)

    def add(self, output: TextOutput) -> None:
        self._outputs.setdefault(output.index, []).append(output)

    def body(self) -> bytes:
        whole = {index: merged(outputs)[0] for index, outputs in self._outputs.items()}
        n, width = self._search.n, self._search.width
        for first in range(0, len(whole), width):
            group = [whole[index] for index in range(first, first + width)]
            prompt_logprobs = group[0].prompt_logprobs
            best = sorted(group, key=lambda output: -_mean(output.logprobs))
            for place, output in enumerate(best[:n]):
                output.index = first // width * n + place
                output.prompt_logprobs = prompt_logprobs if place == 0 else None
                if not self._shows_logprobs:
                    output.logprobs = None
                self._answer.add(output)
            for output in best[n:]:
                self.tally.note(output)  # they were generated as well
        return self._answer.body()


def _mean(logprobs: list[TokenLogprobs] | None) -> float:
    if not logprobs:
        return float("-inf")
    return sum(at.logprobs[0] for at in logprobs) / len(logprobs)
