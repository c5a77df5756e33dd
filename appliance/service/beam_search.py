"""Beam search over the engine: each step asks for the most likely next tokens of every live beam.

The rules are those of transformers' `generate(num_beams=...)`, so that the answers can be compared with it.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from appliance.engine.messages import ErrorKind, FinishReason, SamplingParams, SequenceOutput, TokenLogprobs
from appliance.plan.types import ModelPlan
from appliance.service.errors import RequestFailedError
from appliance.service.policy import Meter, OpenPolicy, PartMeter
from appliance.service.requests import TextOptions, TextOutput, TextRequest
from appliance.service.sequence_text import SequenceText
from appliance.service.service_client import ServiceClient
from appliance.service.streams import OutputStream
from appliance.service.text_side import TextSide

EarlyStopping = Literal["never"] | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRules:
    """width: live beams, and finished ones that are kept. A finished beam's score is its log-probability divided by
    its number of tokens to the power of length_penalty.

    early_stopping: True ends with the width-th finished beam; False when no live beam, as long as it is now, beats the
    worst finished one; "never" when none can, however long it gets.
    """

    width: int
    max_tokens: int
    end_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @property
    def num_candidates(self) -> int:
        """Enough that `width` beams live on when every end token is among them."""
        return max(2, 1 + len(self.end_ids)) * self.width


@dataclass(frozen=True, slots=True)
class Beam:
    """One path. score: the sum of its tokens' log-probabilities."""

    token_ids: tuple[int, ...] = ()
    score: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)
class Beams:
    """All paths of one search. `finished` holds (final score, beam), best first."""

    rules: BeamRules
    live: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[tuple[float, Beam]] = field(default_factory=list)

    def advance(self, tops: Sequence[TokenLogprobs]) -> None:
        """`tops`: for each live beam what may follow, the chosen token and then the most likely ones in order."""
        rules = self.rules
        grown = [_grown(beam, top, place) for beam, top in zip(self.live, tops, strict=True) for place in _places(top)]
        best = sorted(grown, key=lambda beam: -beam.score)[: rules.num_candidates]
        is_last = len(best[0].token_ids) == rules.max_tokens
        ended = [is_last or beam.token_ids[-1] in rules.end_ids for beam in best]
        self.live = [beam for beam, has_ended in zip(best, ended, strict=True) if not has_ended][: rules.width]
        for beam, has_ended in list(zip(best, ended, strict=True))[: rules.width]:
            if has_ended:
                self.finished.append((_normalized(beam.score, len(beam.token_ids), rules), beam))
        self.finished = sorted(self.finished, key=lambda pair: -pair[0])[: rules.width]

    @property
    def is_done(self) -> bool:
        if not self.live:
            return True
        if len(self.finished) < self.rules.width:
            return False
        return self.rules.early_stopping is True or self._best_possible() <= self.finished[-1][0]

    def _best_possible(self) -> float:
        """Returns the best score that a live beam may still reach."""
        rules, best = self.rules, self.live[0]
        is_patient = rules.early_stopping == "never" and rules.length_penalty > 0
        length = rules.max_tokens if is_patient else len(best.token_ids)
        return _normalized(best.score, length, rules)


def beam_problem(model: ModelPlan) -> str | None:
    """Returns why a model has no beam search; None: it has."""
    if model.pooling is not None:
        return "beam search is for models that generate, and this model pools"
    if model.logits_processors:
        return "beam search knows no logits processors, and decoding.logits_processors has some"
    if model.logprobs_mode != "raw_logprobs":
        return f"beam search needs model.logprobs_mode raw_logprobs; here it is {model.logprobs_mode}"
    return None


class BeamStream:
    """The searches of several requests, as one stream: everything comes at the end, best first, n of each request."""

    def __init__(
        self, client: ServiceClient, text: TextSide, requests: Sequence[TextRequest], rules: Sequence[BeamRules]
    ) -> None:
        self._client = client
        self._text = text
        self._searches = list(zip(requests, rules, strict=True))
        self._open: set[OutputStream] = set()
        self._meter: Meter = OpenPolicy()  # until the policy has admitted the searches
        self._is_closed = False
        self._is_answered = False
        self._versions: set[str | None] = set()  # of the weights, after each step

    def close(self) -> None:
        """Ends the searches, and so the iteration."""
        self._is_closed = True
        for stream in self._open:
            stream.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TextOutput]:
        """Raises RequestFailedError when one of the searches failed."""
        if self._is_answered or self._is_closed:
            raise StopAsyncIteration
        self._is_answered = True
        admitted, self._meter = self._client.policy.admit([request for request, _ in self._searches])
        rules_of, ending = [rules for _, rules in self._searches], "error"
        for _ in admitted:
            self._meter.timed(None)  # a search has no phases of its own
        try:
            found = await asyncio.gather(*map(self._search, admitted, rules_of))
            ending = "abort" if self._is_closed else "stop"
        except BaseException:
            self.close()  # the other searches end with the one that failed
            raise
        finally:
            self._meter.close(ending)
        return [
            _output(self._text, request, beam, rules, place * request.sampling.n + number)
            for place, ((request, rules), beams) in enumerate(zip(self._searches, found, strict=True))
            for number, beam in enumerate(beams[: request.sampling.n])
        ]

    async def _search(self, request: TextRequest, rules: BeamRules) -> list[Beam]:
        """Best first; none when the search was closed."""
        beams = Beams(rules)
        step = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=rules.num_candidates)
        while not beams.is_done:
            asked = [
                replace(
                    request,
                    prompt_token_ids=[*request.prompt_token_ids, *beam.token_ids],
                    sampling=step,
                    text=TextOptions(detokenize=False),
                )
                for beam in beams.live
            ]
            tops = await self._next_tokens(asked)
            if self._is_closed:
                return []
            beams.advance(tops)
        return [beam for _, beam in beams.finished]

    async def _next_tokens(self, requests: list[TextRequest]) -> list[TokenLogprobs]:
        tops: dict[int, TokenLogprobs] = {}
        with self._client.generate(*requests, is_streamed=False, meter=PartMeter(self._meter)) as stream:
            self._open.add(stream)
            try:
                async for outputs in stream:
                    tops.update({output.index: output.logprobs[0] for output in outputs if output.logprobs})
            finally:
                self._open.discard(stream)
        self._check_weights()
        return [tops[index] for index in sorted(tops)]

    def _check_weights(self) -> None:
        """Raises RequestFailedError if the weights were replaced between two steps: no answer is of both."""
        stats = [engine.stats for engine in self._client.engines]
        self._versions.update(each.weights.digest for each in stats if each is not None and each.weights is not None)
        if len(self._versions) > 1:
            reason = "the weights were replaced during this beam search; send it again"
            raise RequestFailedError(ErrorKind.UNAVAILABLE, reason)


def _normalized(score: float, length: int, rules: BeamRules) -> float:
    return score / math.pow(length, rules.length_penalty)


def _places(top: TokenLogprobs) -> range:
    """Returns the places of the most likely tokens; the first place repeats the chosen one."""
    return range(1, len(top.token_ids))


def _grown(beam: Beam, top: TokenLogprobs, place: int) -> Beam:
    token_id, logprob = top.token_ids[place], top.logprobs[place]
    at = TokenLogprobs([token_id, *top.token_ids[1:]], [logprob, *top.logprobs[1:]], place)
    score = beam.score + logprob if math.isfinite(logprob) else -math.inf
    return Beam((*beam.token_ids, token_id), score, (*beam.logprobs, at))


def _output(text: TextSide, request: TextRequest, beam: Beam, rules: BeamRules, index: int) -> TextOutput:
    last = beam.token_ids[-1]
    has_ended = last in rules.end_ids
    sampling = request.sampling
    output = SequenceOutput(
        request_id=request.request_id,
        index=index,
        token_ids=list(beam.token_ids),
        logprobs=None if sampling.logprobs is None else list(beam.logprobs),
        finish_reason=FinishReason.STOP if has_ended else FinishReason.LENGTH,
        stop_token_id=last if has_ended else None,
    )
    return SequenceText(text, request, None).advance(output)
