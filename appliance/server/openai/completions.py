"""POST /v1/completions."""

from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.engine.messages import Constraint
from appliance.requests.errors import ApiError, invalid
from appliance.requests.fields import CompletionFields, refuse_unbuilt
from appliance.requests.prompts import Prompt
from appliance.requests.sampling import LengthWish, text_options
from appliance.requests.structured import constraint_of
from appliance.server.adapters.choice import choose_adapter
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.output.answers import EventWriter, Head, Tally, UsageRule, openai_failure
from appliance.server.output.generation import request_id_of, respond
from appliance.server.output.logprobs import CompletionLogprobs, LogprobFormatter
from appliance.server.output.search import Search
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput, TextRequest

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_SEQUENCES = 4096  # of one request
_DECODER = json_decoder(CompletionFields)


async def create_completion(state: ServerState, request: Request) -> Response:
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    await state.find_model(fields.model)
    refuse_unbuilt(fields)
    search = Search.of(state.plan, fields)
    prompts = await state.prompts.completion(fields)
    request_id = request_id_of(request, state.plan.serving.http, fields)
    constraint = constraint_of(fields, state.plan.serving.structured)
    chosen = await choose_adapter(state, fields)
    requests = [replace(_text_request(state, fields, request_id, prompt, constraint), **chosen) for prompt in prompts]
    if (asked := len(requests) * search.width) > MAX_SEQUENCES:
        message = f"prompts times n are {asked} sequences; {MAX_SEQUENCES} are allowed in one request"
        raise invalid("n", message, "invalid_value")
    answer = search.chosen(CompletionAnswer(state, fields, prompts, requests), requests)
    beams = search.beams(state.plan, state.client, fields, requests)
    sampled = search.sampled(requests)
    return await respond(state, request, sampled, answer, is_streamed=bool(fields.stream), source=beams)


def _text_request(
    state: ServerState,
    fields: CompletionFields,
    request_id: str,
    prompt: Prompt,
    constraint: Constraint | None,
) -> TextRequest:
    rules = state.sampling
    asked = 1 if _is_scoring(fields) else fields.max_tokens
    prompt_logprobs = fields.prompt_logprobs
    if fields.use_beam_search and (_is_scoring(fields) or (fields.echo and fields.logprobs is not None)):
        raise invalid("echo", "the log-probabilities of a prompt have no use in beam search", "invalid_value")
    if fields.echo and fields.logprobs is not None:
        prompt_logprobs = max(fields.logprobs, prompt_logprobs or 0)
    wish = LengthWish(asked=asked, field="max_tokens", prompt_field="prompt", default=DEFAULT_MAX_TOKENS)
    max_tokens = rules.max_tokens(wish, len(prompt.token_ids))
    return TextRequest(
        request_id=request_id,
        prompt_token_ids=prompt.token_ids,
        prompt_embeds=prompt.embeds,
        sampling=rules.params(fields, max_tokens, fields.logprobs, prompt_logprobs),
        constraint=constraint,
        text=text_options(fields),
        priority=rules.check_priority(fields),
        cache_salt=fields.cache_salt,
    )


def _is_scoring(fields: CompletionFields) -> bool:
    """echo with max_tokens 0 asks for the prompt alone: one token is made, because an engine must, and not shown."""
    return bool(fields.echo) and fields.max_tokens == 0


class _Choice:
    """One sequence of the answer."""

    def __init__(self, prompt: Prompt, echo_text: str | None, logprobs: CompletionLogprobs | None) -> None:
        self.prompt = prompt
        self.echo_text = echo_text
        self.logprobs = logprobs
        self.has_begun = False
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.pieces: list[dict[str, Any]] = []
        self.end: TextOutput | None = None


class CompletionAnswer:
    """text_completion objects, whole or as events."""

    def __init__(
        self, state: ServerState, fields: CompletionFields, prompts: list[Prompt], requests: list[TextRequest]
    ) -> None:
        serving = state.plan.serving
        told = serving.answers
        num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self.tally = Tally(num_tokens, told.prompt_tokens_details, told.draft_metrics)
        self._head = Head.new("cmpl", requests[0].request_id, requests[0].adapter or state.model_name)
        as_ids = fields.return_tokens_as_token_ids
        self._formatter = LogprobFormatter(
            state.tokenizer, as_ids=serving.answers.return_tokens_as_token_ids if as_ids is None else as_ids
        )
        self._fields = fields
        self._is_scoring = _is_scoring(fields)
        rule = UsageRule.of(fields, forced=serving.answers.force_include_usage)
        start = self._head.event_start("text_completion")
        self._writer = EventWriter(start, b',"text":', b"", rule, self.tally)
        n = requests[0].sampling.n
        self._choices = [self._new_choice(state, prompt) for prompt in prompts for _ in range(n)]
        self._n = n
        self._prompt_logprobs: dict[int, list[dict[str, Any] | None]] = {}
        self._raw_prompt_logprobs: dict[int, list[Any]] = {}

    def opening(self) -> bytes:
        return b""

    def event(self, output: TextOutput) -> bytes:
        is_first = not self._choices[output.index].has_begun
        text, logprobs = self._piece(output)
        extra: dict[str, Any] = {}
        if self._fields.prompt_logprobs is not None and output.prompt_logprobs is not None:
            extra["prompt_logprobs"] = self._formatter.prompt(output.prompt_logprobs)
        if self._fields.return_token_ids:
            extra["token_ids"] = output.token_ids
            if is_first:
                extra["prompt_token_ids"] = self._choices[output.index].prompt.known_ids
        if not text and logprobs is None and output.finish_reason is None and not extra:
            return b""
        return self._writer.event(output, text, logprobs, extra)

    def ending(self) -> bytes:
        return self._writer.ending()

    def failure(self, error: ApiError) -> bytes:
        return openai_failure(error)

    def add(self, output: TextOutput) -> None:
        choice = self._choices[output.index]
        text, logprobs = self._piece(output)
        choice.texts.append(text)
        choice.token_ids += output.token_ids
        if logprobs is not None:
            choice.pieces.append(logprobs)
        if output.finish_reason is not None:
            choice.end = output

    def body(self) -> bytes:
        choices = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
        return orjson.dumps({**self._head.fields("text_completion"), "choices": choices, **self.tally.closing()})

    def _new_choice(self, state: ServerState, prompt: Prompt) -> _Choice:
        echo_text = None
        if self._fields.echo:
            echo_text = prompt.text if prompt.text is not None else state.tokenizer.decode(prompt.token_ids)
        num_top = self._fields.logprobs
        return _Choice(prompt, echo_text, None if num_top is None else CompletionLogprobs(self._formatter, num_top))

    def _piece(self, output: TextOutput) -> tuple[str, dict[str, Any] | None]:
        """Returns what one output shows: the echoed prompt with the first one, then what was generated."""
        choice = self._choices[output.index]
        if output.prompt_logprobs is not None:
            self._raw_prompt_logprobs[output.index // self._n] = output.prompt_logprobs
        text, token_ids, positions = output.text, output.token_ids, list(output.logprobs or [])
        if self._is_scoring:
            text, token_ids, positions = "", [], []
            if output.finish_reason is not None:
                output.finish_reason, output.stop_reason = "length", None
            output.token_ids = []
        self.tally.note(output)
        if not choice.has_begun and choice.echo_text is not None:
            text = choice.echo_text + text
            prompt_logprobs = self._raw_prompt_logprobs.get(output.index // self._n)
            if choice.logprobs is not None and prompt_logprobs is not None:
                token_ids, positions = [*choice.prompt.token_ids, *token_ids], [*prompt_logprobs, *positions]
        choice.has_begun = True
        if choice.logprobs is None or not positions:
            return text, None
        return text, choice.logprobs.piece(positions, token_ids)

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        end = choice.end
        whole = {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": _joined(choice.pieces) if choice.logprobs is not None else None,
            "finish_reason": end.finish_reason if end else None,
            "stop_reason": end.stop_reason if end else None,
        }
        if self._fields.prompt_logprobs is not None:
            whole["prompt_logprobs"] = self._formatter.prompt(self._raw_prompt_logprobs.get(index // self._n, []))
        if self._fields.return_token_ids:
            whole |= {"token_ids": choice.token_ids, "prompt_token_ids": choice.prompt.known_ids}
        return whole


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    return {name: [value for piece in pieces for value in piece[name]] for name in names}
