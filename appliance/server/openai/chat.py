"""POST /v1/chat/completions."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import ApiError
from appliance.requests.fields import ChatFields, text_of
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.openai.chat_message import WholeMessage, delta_fields
from appliance.server.output.answers import EventWriter, Head, Tally, UsageRule, openai_failure
from appliance.server.output.generation import request_id_of, respond
from appliance.server.output.logprobs import LogprobFormatter
from appliance.server.output.search import Search
from appliance.server.requests.turn import ChatTurn, prepare_turn
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput

_DECODER = json_decoder(ChatFields)


async def create_chat_completion(state: ServerState, request: Request) -> Response:
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    search = Search.of(state.plan, fields)
    turn = await prepare_turn(state, fields, request_id_of(request, state.plan.serving.http, fields))
    requests = [turn.request]
    answer = search.chosen(ChatAnswer(state, turn), requests)
    beams = search.beams(state.plan, state.client, fields, requests)
    sampled = search.sampled(requests)
    return await respond(state, request, sampled, answer, is_streamed=bool(fields.stream), source=beams)


class ChatAnswer:
    """chat.completion, or chat.completion.chunk events."""

    def __init__(self, state: ServerState, turn: ChatTurn) -> None:
        serving, fields, request = state.plan.serving, turn.fields, turn.request
        told = serving.answers
        self.tally = Tally(len(request.prompt_token_ids), told.prompt_tokens_details, told.draft_metrics)
        self._head = Head.new("chatcmpl", request.request_id, request.adapter or state.model_name)
        as_ids = fields.return_tokens_as_token_ids
        self._formatter = LogprobFormatter(
            state.tokenizer, as_ids=serving.answers.return_tokens_as_token_ids if as_ids is None else as_ids
        )
        self._num_top = request.sampling.logprobs
        self._n = request.sampling.n
        self._readers = turn.readers()
        self._role = serving.answers.response_role if fields.add_generation_prompt else fields.messages[-1].role
        self._prefix = _echoed(fields)
        rule = UsageRule.of(fields, forced=serving.answers.force_include_usage)
        start = self._head.event_start("chat.completion.chunk")
        self._writer = EventWriter(start, b',"delta":{"content":', b"}", rule, self.tally)
        has_reasoning = turn.reading.shows_reasoning
        self._messages = [WholeMessage(self._role, has_reasoning, [self._prefix]) for _ in range(self._n)]
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in range(self._n)]
        self._returns_token_ids = bool(fields.return_token_ids)
        self._prompt_token_ids = request.prompt_token_ids
        self._token_ids: list[list[int]] = [[] for _ in range(self._n)]
        self._ends: list[TextOutput | None] = [None] * self._n
        self._prompt_logprobs: list[dict[str, Any] | None] | None = None

    def opening(self) -> bytes:
        content = orjson.dumps(self._prefix)
        delta = b'"delta":{"role":%s,"content":%s}' % (orjson.dumps(self._role), content)
        first = delta + b',"logprobs":null,"finish_reason":null'
        more = {"prompt_token_ids": self._prompt_token_ids} if self._returns_token_ids else None
        return b"".join(self._writer.choice(index, first, more) for index in range(self._n))

    def event(self, output: TextOutput) -> bytes:
        self.tally.note(output)
        logprobs = self._content_logprobs(output)
        delta = self._readers[output.index].push(output)
        extra = {"token_ids": output.token_ids} if self._returns_token_ids else None
        if not delta and logprobs is None and output.finish_reason is None and not extra:
            return b""
        shown = None if logprobs is None else {"content": logprobs}
        if not delta.reasoning and not delta.tool_calls:
            return self._writer.event(output, delta.content, shown, extra)
        return self._writer.delta_event(output, delta_fields(delta), shown, extra)

    def ending(self) -> bytes:
        return self._writer.ending()

    def failure(self, error: ApiError) -> bytes:
        return openai_failure(error)

    def add(self, output: TextOutput) -> None:
        self.tally.note(output)
        self._messages[output.index].add(self._readers[output.index].push(output))
        self._token_ids[output.index] += output.token_ids
        self._logprobs[output.index] += self._content_logprobs(output) or []
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = self._formatter.prompt(output.prompt_logprobs)
        if output.finish_reason is not None:
            self._ends[output.index] = output

    def body(self) -> bytes:
        choices = [self._choice(index, end) for index, end in enumerate(self._ends)]
        body = {**self._head.fields("chat.completion"), "choices": choices, **self.tally.closing()}
        if self._prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs
        if self._returns_token_ids:
            body["prompt_token_ids"] = self._prompt_token_ids
        return orjson.dumps(body)

    def _choice(self, index: int, end: TextOutput | None) -> dict[str, Any]:
        choice = {
            "index": index,
            "message": self._messages[index].fields(),
            "logprobs": {"content": self._logprobs[index]} if self._num_top is not None else None,
            "finish_reason": end.finish_reason if end else None,
            "stop_reason": end.stop_reason if end else None,
        }
        return {**choice, "token_ids": self._token_ids[index]} if self._returns_token_ids else choice

    def _content_logprobs(self, output: TextOutput) -> list[dict[str, Any]] | None:
        if self._num_top is None or not output.logprobs:
            return None
        return self._formatter.chat(output.logprobs, self._num_top)


def _echoed(fields: ChatFields) -> str:
    """echo: the last message is repeated when it is the assistant's own."""
    last = fields.messages[-1]
    if not fields.echo or last.role != "assistant":
        return ""
    return text_of(last)
