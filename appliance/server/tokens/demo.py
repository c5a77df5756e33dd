"""POST /generate, the simple server of vLLM's examples: the prompt comes back with what follows it."""

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.requests.errors import ApiError
from appliance.requests.fields import CompletionFields
from appliance.requests.sampling import LengthWish, text_options
from appliance.server.http.bodies import json_decoder, read_fields
from appliance.server.output.answers import Tally
from appliance.server.output.generation import respond
from appliance.server.output.search import Search
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput, TextRequest

_DEFAULT_MAX_TOKENS = 16


class DemoFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    logprobs: None = None  # there is no place for them in the answer; clients of this route send null
    ignore_eos: bool = False
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = False


_DECODER = json_decoder(DemoFields)


async def demo_generate(state: ServerState, request: Request) -> Response:
    """A demonstration, not for production: texts with their prompt; streamed as JSON with a NUL after each."""
    state.client.check_admission()
    fields = await read_fields(state.plan.serving, request, _DECODER)
    completion = CompletionFields(**msgspec.structs.asdict(fields))
    search = Search.of(state.plan, completion)
    [prompt] = await state.prompts.completion(completion)
    token_ids = prompt.token_ids
    wish = LengthWish(asked=fields.max_tokens, field="max_tokens", prompt_field="prompt", default=_DEFAULT_MAX_TOKENS)
    text_request = TextRequest(
        request_id="demo",
        prompt_token_ids=token_ids,
        sampling=state.sampling.params(completion, state.sampling.max_tokens(wish, len(token_ids)), None, None),
        text=text_options(completion),
    )
    answer = DemoAnswer(fields.prompt, text_request)
    beams = search.beams(state.plan, state.client, completion, [text_request])
    response = await respond(state, request, [text_request], answer, is_streamed=bool(fields.stream), source=beams)
    if fields.stream:
        response.headers["content-type"] = "application/octet-stream"
    return response


class DemoAnswer:
    """{"text": [...]}, each text from the beginning of its prompt."""

    def __init__(self, prompt: str, request: TextRequest) -> None:
        self.tally = Tally(len(request.prompt_token_ids), with_details=False)
        self._texts = [prompt] * request.sampling.n

    def opening(self) -> bytes:
        return b""

    def event(self, output: TextOutput) -> bytes:
        self.add(output)
        return self.body() + b"\0" if output.text else b""

    def ending(self) -> bytes:
        return b""

    def failure(self, error: ApiError) -> bytes:
        return orjson.dumps(error.body()) + b"\0"

    def add(self, output: TextOutput) -> None:
        self.tally.note(output)
        self._texts[output.index] += output.text

    def body(self) -> bytes:
        return orjson.dumps({"text": self._texts})
