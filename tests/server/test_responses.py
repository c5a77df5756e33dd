"""OpenAI's Responses API through its official client: create, stream, store, continue, cancel, and whose it is."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from appliance.server.responses.conversation import chat_fields, input_items
from appliance.server.responses.fields import (
    UNBUILT,
    AllowedTool,
    InputItem,
    InputPart,
    ReasoningFields,
    ResponsesFields,
    ResponsesToolChoice,
    ResponseTool,
)
from tests.server.harness import Server, encode, running, says, wait_until

GREET = "greet"
PROMPT_TOKENS = len("<user>greet</><assistant>")
TOOL = {"type": "function", "name": "f"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}


@pytest.fixture
def responses(client: openai.OpenAI) -> Any:
    return client.responses


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_whole_response(responses: Any) -> None:
    made = responses.create(model="scripted", input=GREET, metadata={"a": "b"})
    assert (made.object, made.status, made.model) == ("response", "completed", "scripted")
    assert made.id.startswith("resp_")
    assert made.output_text == "hello world"
    [item] = made.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (
        PROMPT_TOKENS, 4, PROMPT_TOKENS + 4,
    )  # fmt: skip
    assert (made.error, made.incomplete_details, made.metadata, made.text.format.type) == (
        None,
        None,
        {"a": "b"},
        "text",
    )


def test_events_in_order_and_numbered(responses: Any) -> None:
    events = list(responses.create(model="scripted", input=GREET, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    num_deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * num_deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "hello world"
    last = events[-1].response
    assert (last.status, last.output_text, last.usage.output_tokens) == ("completed", "hello world", 4)
    assert events[2].item.id == events[4].item_id == last.output[0].id
    assert events[0].response.output == []


def test_stream_helper_accumulates(responses: Any) -> None:
    with responses.stream(model="scripted", input=GREET) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == "hello world"


async def test_async(async_client: openai.AsyncOpenAI) -> None:
    made = await async_client.responses.create(model="scripted", input=GREET)
    assert made.output_text == "hello world"
    events = [
        event.type async for event in await async_client.responses.create(model="alias", input=GREET, stream=True)
    ]
    assert events[-1] == "response.completed"


def test_length(responses: Any) -> None:
    made = responses.create(model="scripted", input="count", max_output_tokens=3)
    assert (made.status, made.incomplete_details.reason, made.output_text) == ("incomplete", "max_output_tokens", "1 2")
    assert made.output[0].status == "incomplete"
    events = list(responses.create(model="scripted", input="count", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"


def test_items_become_a_conversation(http: httpx.Client) -> None:
    items = [
        {"role": "developer", "content": "and short"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"role": "user", "content": "greet"},
    ]
    body = {"input": items, "instructions": "be kind"}
    answer = http.post("/v1/responses", json=body).json()
    text = "<system>be kind\n\nand short</><user>a</><assistant>b</><user>greet</><assistant>"
    assert answer["usage"]["input_tokens"] == len(encode(text))
    assert answer["output"][0]["content"][0]["text"] == "hello world"


def test_stored_responses(responses: Any, client: openai.OpenAI) -> None:
    made = responses.create(model="scripted", input=GREET)
    assert responses.retrieve(made.id) == made
    [item] = responses.input_items.list(made.id).data
    assert (item.role, item.content[0].type, item.content[0].text) == ("user", "input_text", GREET)
    deleted = client.delete(f"/responses/{made.id}", cast_to=httpx.Response)
    assert deleted.json() == {"id": made.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(made.id)
    unstored = responses.create(model="scripted", input=GREET, store=False)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(unstored.id)
    streamed = list(responses.create(model="scripted", input=GREET, stream=True))[-1].response
    assert responses.retrieve(streamed.id).output_text == "hello world"


def test_input_items_are_paged(responses: Any) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    made = responses.create(model="scripted", input=items, max_output_tokens=1)
    listed = [item.content[0].text for item in responses.input_items.list(made.id, limit=2)]
    assert listed == ["4", "3", "2", "1", "0"]
    first = responses.input_items.list(made.id, limit=2, order="asc")
    assert ([item.content[0].text for item in first.data], first.has_more) == (["0", "1"], True)


def test_previous_response(responses: Any) -> None:
    first = responses.create(model="scripted", input=GREET, instructions="be kind")
    then = responses.create(model="scripted", input=GREET, previous_response_id=first.id)
    said = "<user>greet</><assistant>hello world</><user>greet</><assistant>"
    assert then.usage.input_tokens == len(encode(said))  # instructions are not carried over
    assert then.previous_response_id == first.id
    assert then.output_text == "hello world"
    with pytest.raises(openai.NotFoundError, match="no response 'resp_none'"):
        responses.create(model="scripted", input=GREET, previous_response_id="resp_none")


def test_logprobs(responses: Any) -> None:
    made = responses.create(model="scripted", input=GREET, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = made.output[0].content[0].logprobs
    assert [entry.token for entry in logprobs] == ["hello", " ", "world", "<|end|>"]
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_background(responses: Any) -> None:
    made = responses.create(model="scripted", input=GREET, background=True)
    assert (made.status, made.background) == ("in_progress", True)
    wait_until(lambda: responses.retrieve(made.id).status == "completed", "the response does not end")
    assert responses.retrieve(made.id).output_text == "hello world"
    assert responses.cancel(made.id).status == "completed"
    with pytest.raises(openai.BadRequestError, match="background"):
        responses.cancel(responses.create(model="scripted", input=GREET).id)


def test_cancelled_in_the_background(tmp_path: Path) -> None:
    script = Script(step_seconds=0.05, replies=[says("greet", "hello")])
    with running(tmp_path, script) as server, server.openai() as client, server.http() as http:
        made = client.responses.create(model="scripted", input="x" * 50, background=True)
        assert client.responses.cancel(made.id).status == "cancelled"
        assert client.responses.retrieve(made.id).status == "cancelled"
        wait_until(lambda: "vllm:num_requests_running{" in http.get("/metrics").text, "no metrics")
        ended = 'finished_reason="abort"'
        wait_until(lambda: ended in http.get("/metrics").text or _idle(http), "the engine goes on")
        assert client.responses.retrieve(made.id).status == "cancelled"


def _idle(http: httpx.Client) -> bool:
    lines = http.get("/metrics").text.splitlines()
    return any(line.startswith("vllm:num_requests_running{") and line.endswith(" 0.0") for line in lines)


def test_responses_belong_to_their_key_and_are_bounded(tmp_path: Path) -> None:
    hashes = {"a": key_hash("first-key"), "b": key_hash("second-key")}
    script = Script(replies=[says("greet", "hello")])
    with running(tmp_path, script, key_hashes=hashes, max_responses=3) as server:
        first, second = server.openai("first-key").responses, server.openai("second-key").responses
        made: Any = [first.create(model="scripted", input=GREET) for _ in range(4)]
        for call in (second.retrieve, second.cancel, second.delete, second.input_items.list):
            with pytest.raises(openai.NotFoundError):
                call(made[3].id)
        with pytest.raises(openai.NotFoundError):
            second.create(model="scripted", input=GREET, previous_response_id=made[3].id)
        assert first.retrieve(made[3].id).output_text == "hello"
        with pytest.raises(openai.NotFoundError):
            first.retrieve(made[0].id)  # the oldest had to go


@pytest.mark.parametrize("field", sorted(UNBUILT))
def test_what_is_not_built_is_refused_by_name(http: httpx.Client, field: str) -> None:
    value = "auto" if field == "truncation" else "something"
    refused = http.post("/v1/responses", json={"input": GREET, field: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("input", {"input": []}), ("input", {"input": 5}), ("max_output_tokens", {"max_output_tokens": 0}),
        ("include[0]", {"include": ["file_search_call.results"]}), ("text.verbosity", {"text": {"verbosity": "high"}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}), ("tool_choice", {"tool_choice": "required"}),
        ("stream", {"background": True, "stream": True}), ("background", {"background": True, "store": False}),
        ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input[0].type", {"input": [{"id": "x"}]}), ("tools[0].async", {"tools": [{**TOOL, "async": True}]}),
        ("input[1].type", {"input": [{"role": "user", "content": "x"}, CUSTOM_CALL]}),
        ("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "custom", "name": "f"}}),
        ("prompt_cache_options.prewarm", {"prompt_cache_options": {"prewarm": True}}),
        ("no_such", {"no_such": 1}), ("model", {"model": "no-such"}),
    ],
)  # fmt: skip
def test_wrong_requests_name_their_field(http: httpx.Client, param: str, change: dict[str, Any]) -> None:
    refused = http.post("/v1/responses", json={"input": GREET, **change})
    assert refused.status_code == (404 if param == "model" else 400), refused.text
    assert refused.json()["error"]["param"] == param


def test_some_of_the_tools_may_be_chosen_from() -> None:
    tools = [ResponseTool(type="function", name=name, output_schema={"type": "string"}) for name in "fg"]
    allowed = ResponsesToolChoice(type="allowed_tools", mode="required", tools=[AllowedTool(type="function", name="g")])
    fields = ResponsesFields(input="x", tools=tools, tool_choice=allowed)
    chat = chat_fields(fields, input_items(fields), num_earlier=0)
    named = [{"type": "function", "function": {"name": "g"}}]
    assert chat.tool_choice == {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    assert [tool["function"]["name"] for tool in chat.tools] == ["f", "g"]
    assert chat.tools[0]["function"]["description"] == 'It answers with JSON of this schema: {"type":"string"}'


@pytest.mark.parametrize(
    ("context", "seen"), [("current_turn", ["new"]), ("all_turns", ["old", "new"]), (None, ["old", "new"])]
)
def test_reasoning_of_earlier_turns(context: Any, seen: list[str]) -> None:
    def thought(text: str) -> InputItem:
        return InputItem(type="reasoning", content=[InputPart(type="reasoning_text", text=text)])

    user = InputItem(role="user", content="x")
    call = InputItem(type="function_call", call_id="c", name="f", arguments="{}")
    items = [user, thought("old"), call, user, thought("new"), call]
    fields = ResponsesFields(input=items, reasoning=ReasoningFields(context=context))
    messages = chat_fields(fields, items, num_earlier=0).messages
    assert [message.reasoning_content for message in messages if message.reasoning_content] == seen


def test_a_failing_engine_fails_the_stream(tmp_path: Path) -> None:
    script = Script(crash_at_step=8)
    with running(tmp_path, script) as server, server.http() as http:
        body = {"input": "x" * 80, "stream": True}
        with http.stream("POST", "/v1/responses", json=body) as answer:
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["status"] == "failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"


def test_input_tokens_are_counted(client: openai.OpenAI) -> None:
    """As many as the response itself is told of, with what it continues."""
    first = client.responses.create(model="scripted", input="greet")
    assert first.usage is not None
    assert client.responses.input_tokens.count(model="scripted", input="greet").input_tokens == first.usage.input_tokens
    more = client.responses.input_tokens.count(model="scripted", input="on", previous_response_id=first.id)
    again = client.responses.create(model="scripted", input="on", previous_response_id=first.id)
    assert again.usage is not None
    assert more.input_tokens == again.usage.input_tokens
