"""The answer to one request as it grows, and its forms for the caller."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from appliance.engine.messages import TokenLogprobs
from appliance.offline.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestMetrics, RequestOutput
from appliance.offline.params import LoRARequest, RequestOutputKind
from appliance.service.requests import TextOutput, TextRequest
from appliance.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Sequence:
    """Everything of one sequence, or what is new of it."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    cumulative: float = 0.0  # of all tokens, also where the rest is what is new
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    has_news: bool = False

    def clear(self) -> None:
        self.texts, self.token_ids, self.logprobs, self.has_news = [], [], [], False


class Growing:
    """One request's answer. `kind` says what `shown` gives."""

    def __init__(
        self,
        request: TextRequest,
        prompt: str | None,
        tokenizer: Tokenizer,
        lora: LoRARequest | None,
        kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY,
    ) -> None:
        self._request = request
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._lora = lora
        self._kind = kind
        self._sequences = [_Sequence() for _ in range(request.sampling.n)]
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._num_cached = 0
        self._metrics = RequestMetrics(arrival_time=time.time())

    @property
    def finished(self) -> bool:
        return all(each.finish_reason is not None for each in self._sequences)

    def add(self, output: TextOutput) -> None:
        sequence, now = self._sequences[output.index], time.time()
        sequence.has_news = True
        sequence.texts.append(output.text)
        sequence.token_ids += output.token_ids
        for position in output.logprobs or ():
            sequence.logprobs.append(position_logprobs(position, self._tokenizer))
            sequence.cumulative += position.logprobs[0]
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if each is None else position_logprobs(each, self._tokenizer) for each in output.prompt_logprobs
            ]
        self._num_cached += output.num_cached_tokens
        if output.finish_reason is not None:
            sequence.finish_reason, sequence.stop_reason = output.finish_reason, output.stop_reason
        self._note_times(output, now)

    def abort(self) -> None:
        """Ends the sequences that go on."""
        for each in self._sequences:
            each.finish_reason = each.finish_reason or "abort"
            each.has_news = True

    def shown(self) -> RequestOutput:
        """Returns the answer so far, or what is new of it."""
        is_delta = self._kind is RequestOutputKind.DELTA
        shown = [
            self._completion(index, each) for index, each in enumerate(self._sequences) if each.has_news or not is_delta
        ]
        output = RequestOutput(
            request_id=self._request.request_id,
            prompt=self._prompt,
            prompt_token_ids=None if self._request.prompt_embeds is not None else self._request.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=shown,
            finished=self.finished,
            metrics=replace(self._metrics),
            lora_request=self._lora,
            num_cached_tokens=self._num_cached,
        )
        if is_delta:
            self._prompt_logprobs = None
            for each in self._sequences:
                each.clear()
        return output

    def _completion(self, index: int, sequence: _Sequence) -> CompletionOutput:
        has_logprobs = self._request.sampling.logprobs is not None
        return CompletionOutput(
            index=index,
            text="".join(sequence.texts),
            token_ids=list(sequence.token_ids),
            cumulative_logprob=sequence.cumulative if has_logprobs else None,
            logprobs=list(sequence.logprobs) if has_logprobs else None,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            lora_request=self._lora,
        )

    def _note_times(self, output: TextOutput, now: float) -> None:
        metrics = self._metrics
        if output.token_ids:
            metrics.first_token_time = metrics.first_token_time or now
            metrics.last_token_time = now
            metrics.num_generation_tokens += len(output.token_ids)
        if self.finished:
            metrics.finished_time = now


def position_logprobs(position: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """Returns vLLM's form: the chosen token, and the most likely ones, each once."""
    found: PositionLogprobs = {}
    ranks: Sequence[int] = [position.rank, *range(1, len(position.token_ids))]
    for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
        found.setdefault(token_id, Logprob(logprob, rank, tokenizer.token_text(token_id)))
    return found
