"""POST /inference/v1/generate: token ids in, token ids out."""

from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import ApiError, not_in_this_version
from appliance.requests.fields import CompletionFields, check_stream_options
from appliance.requests.sampling import LengthWish, text_options
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.output.answers import DONE, Tally, UsageRule, openai_failure
from appliance.server.output.generation import request_id_of, respond
from appliance.server.output.logprobs import LogprobFormatter
from appliance.server.state import ServerState
from appliance.server.tokens.fields import SAMPLING_NAMES, UNBUILT, GenerateFields
from appliance.service.requests import TextOutput, TextRequest

_DECODER = json_decoder(GenerateFields)


async def generate(state: ServerState, request: Request) -> Response:
    """Generation from token ids; nothing is added to them."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    await state.find_model(fields.model)
    for name, neutral in UNBUILT.items():
        if getattr(fields, name) not in neutral:
            raise not_in_this_version(name)
    check_stream_options(fields.stream_options, is_streamed=fields.stream)
    completion = _completion(fields)
    try:
        text_request = await _text_request(state, request, fields, completion)
        answer = GenerateAnswer(state, completion, text_request)
        return await respond(state, request, [text_request], answer, is_streamed=bool(fields.stream))
    except ApiError as error:
        error.param = _param(error.param)
        raise


async def _text_request(
    state: ServerState, request: Request, fields: GenerateFields, completion: CompletionFields
) -> TextRequest:
    [prompt] = await state.prompts.completion(completion)
    token_ids = prompt.token_ids
    wish = LengthWish(asked=fields.sampling_params.max_tokens, field="max_tokens", prompt_field="prompt")
    max_tokens = state.sampling.max_tokens(wish, len(token_ids))
    text = text_options(completion)  # only a stop string needs the text
    return TextRequest(
        request_id=request_id_of(request, state.plan.serving.http, completion),
        prompt_token_ids=token_ids,
        sampling=state.sampling.params(completion, max_tokens, completion.logprobs, completion.prompt_logprobs),
        text=text if text.stop else replace(text, detokenize=False),
        priority=state.sampling.check_priority(completion),
        cache_salt=fields.cache_salt,
        adapter=state.adapter_of(fields.model),
    )


def _completion(fields: GenerateFields) -> CompletionFields:
    """The same wishes in the words of completions."""
    sampling = {name: getattr(fields.sampling_params, name) for name in SAMPLING_NAMES}
    return CompletionFields(
        prompt=[*fields.token_ids],
        request_id=fields.request_id,
        priority=fields.priority,
        stream_options=fields.stream_options,
        **sampling,
    )


def _param(name: str | None) -> str | None:
    """The field of this route that a completion's field stands for."""
    if name is None or name in ("request_id", "priority"):
        return name
    return "token_ids" if name.startswith("prompt") and name != "prompt_logprobs" else f"sampling_params.{name}"


class GenerateAnswer:
    """Choices of token ids, whole or as events."""

    def __init__(self, state: ServerState, fields: CompletionFields, request: TextRequest) -> None:
        self.tally = Tally(len(request.prompt_token_ids), state.plan.serving.answers.prompt_tokens_details)
        self._request_id = request.request_id
        self._formatter = LogprobFormatter(state.tokenizer, as_ids=True)
        self._num_top = request.sampling.logprobs
        self._rule = UsageRule.of(fields, forced=state.plan.serving.answers.force_include_usage)
        self._choices: list[dict[str, Any]] = [
            {"index": index, "token_ids": [], "logprobs": None, "finish_reason": None, "stop_reason": None}
            for index in range(request.sampling.n)
        ]
        self._prompt_logprobs: list[dict[str, Any] | None] | None = None

    def opening(self) -> bytes:
        return b""

    def event(self, output: TextOutput) -> bytes:
        self.tally.note(output)
        body: dict[str, Any] = {"request_id": self._request_id, "choices": [self._choice(output)]}
        if output.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._formatter.prompt(output.prompt_logprobs)
        if self._rule.always:
            body["usage"] = self.tally.usage()
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def ending(self) -> bytes:
        if not self._rule.at_end:
            return DONE
        body = {"request_id": self._request_id, "choices": [], "usage": self.tally.usage()}
        return b"data: " + orjson.dumps(body) + b"\n\n" + DONE

    def failure(self, error: ApiError) -> bytes:
        return openai_failure(error)

    def add(self, output: TextOutput) -> None:
        self.tally.note(output)
        whole, piece = self._choices[output.index], self._choice(output)
        whole["token_ids"] += piece["token_ids"]
        if piece["logprobs"] is not None:
            content = [*(whole["logprobs"] or {"content": []})["content"], *piece["logprobs"]["content"]]
            whole["logprobs"] = {"content": content}
        if output.finish_reason is not None:
            whole |= {"finish_reason": piece["finish_reason"], "stop_reason": piece["stop_reason"]}
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = self._formatter.prompt(output.prompt_logprobs)

    def body(self) -> bytes:
        body = {"request_id": self._request_id, "choices": self._choices, "usage": self.tally.usage()}
        return orjson.dumps({**body, "prompt_logprobs": self._prompt_logprobs, "kv_transfer_params": None})

    def _choice(self, output: TextOutput) -> dict[str, Any]:
        logprobs = None
        if self._num_top is not None and output.logprobs:
            logprobs = {"content": self._formatter.chat(output.logprobs, self._num_top)}
        return {
            "index": output.index,
            "token_ids": output.token_ids,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
