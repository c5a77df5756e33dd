"""Anthropic's Messages API through its official client, sync and async, whole and streamed."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from appliance.server.anthropic.conversation import chat_fields
from appliance.server.anthropic.fields import UNBUILT, InputMessage, PromptFields, ToolDefinition
from tests.server.harness import Server, encode

GREET: list[Any] = [{"role": "user", "content": "greet"}]
PROMPT_TOKENS = len("<user>greet</><assistant>")


@pytest.fixture
def messages(server: Server) -> Iterator[Any]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=server.url, api_key="none", **options) as client:
        yield client.messages


@pytest.fixture
async def async_messages(server: Server) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", **options) as client:
        yield client.messages


def ask(messages: Any, content: Any = "greet", **options: Any) -> Any:
    given = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return messages.create(**{"model": "scripted", "max_tokens": 50, "messages": given, **options})


def test_whole_message(messages: Any) -> None:
    message = ask(messages)
    assert (message.type, message.role, message.model) == ("message", "assistant", "scripted")
    assert message.id.startswith("msg_")
    assert [block.text for block in message.content] == ["hello world"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (PROMPT_TOKENS, 4)


def test_events_in_order(messages: Any) -> None:
    events = list(ask(messages, stream=True))
    kinds = [event.type for event in events]
    num_deltas = kinds.count("content_block_delta")
    assert num_deltas >= 1
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * num_deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0].message
    assert (start.content, start.stop_reason, start.usage.input_tokens) == ([], None, PROMPT_TOKENS)
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == "hello world"
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("end_turn", 4)


def test_events_carry_their_names(http: httpx.Client) -> None:
    body = {"model": "scripted", "max_tokens": 9, "messages": GREET, "stream": True}
    answer = http.post("/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"].startswith("req_")
    events = [event.split("\n") for event in answer.text.removesuffix("\n\n").split("\n\n")]
    assert [event[0] for event in events][:3] == ["event: message_start", "event: content_block_start", "event: ping"]
    for name, data in events:
        assert data.startswith('data: {"type":"' + name.removeprefix("event: ") + '"')


def test_stream_helper_accumulates(messages: Any) -> None:
    with messages.stream(model="scripted", max_tokens=50, messages=GREET) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == "hello world"
    assert final.usage.output_tokens == 4


async def test_async_whole_and_streamed(async_messages: Any) -> None:
    message = await async_messages.create(model="scripted", max_tokens=50, messages=GREET)
    assert message.content[0].text == "hello world"
    async with async_messages.stream(model="scripted", max_tokens=50, messages=GREET) as stream:
        assert "".join([text async for text in stream.text_stream]) == "hello world"
    counted = await async_messages.count_tokens(model="scripted", messages=GREET)
    assert counted.input_tokens == PROMPT_TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence(messages: Any, stream: bool) -> None:
    options = {"model": "scripted", "max_tokens": 50, "stop_sequences": ["STOP", "never"]}
    given = [{"role": "user", "content": "stop"}]
    if stream:
        with messages.stream(messages=given, **options) as events:
            message = events.get_final_message()
    else:
        message = messages.create(messages=given, **options)
    assert message.content[0].text == "one "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")


def test_max_tokens(messages: Any) -> None:
    message = ask(messages, "count", max_tokens=3)
    assert message.content[0].text == "1 2"
    assert message.stop_reason == "max_tokens"


def test_a_context_that_is_full_says_so(messages: Any) -> None:
    """The scripted model counts on for ever; the context has 512 tokens."""
    message = ask(messages, "x" * 200, max_tokens=5_000)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.input_tokens + message.usage.output_tokens == 512


def test_system_and_blocks(messages: Any, http: httpx.Client) -> None:
    blocks = [{"type": "text", "text": "greet", "cache_control": {"type": "ephemeral"}}]
    plain = ask(messages, [{"role": "user", "content": blocks}])
    assert plain.content[0].text == "hello world"
    counted = messages.count_tokens(model="scripted", messages=GREET, system="be kind")
    assert counted.input_tokens == len(encode("<system>be kind</><user>greet</><assistant>"))
    parts = [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]
    counted = messages.count_tokens(model="scripted", messages=GREET, system=parts)
    assert counted.input_tokens == len(encode("<system>be\n\nkind</><user>greet</><assistant>"))


def test_neighbours_of_one_role_are_one_turn(messages: Any) -> None:
    given: list[Any] = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    counted = messages.count_tokens(model="scripted", messages=given)
    assert counted.input_tokens == len(encode("<user>a\n\nb</><assistant>"))


def test_a_last_message_of_the_assistant_is_continued(messages: Any) -> None:
    message = ask(messages, [*GREET, {"role": "assistant", "content": "hello"}])
    assert message.content[0].text == " world"


def test_a_system_message_may_end_with_its_turn(messages: Any) -> None:
    given: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "be brief", "clear_at": "next_user_message"},
        {"role": "assistant", "content": "b"},
        *GREET,
    ]
    counted = messages.count_tokens(model="scripted", messages=given)
    assert counted.input_tokens == len(encode("<user>a</><assistant>b</><user>greet</><assistant>"))
    counted = messages.count_tokens(model="scripted", messages=given[:2])
    assert counted.input_tokens == len(encode("<user>a</><system>be brief</><assistant>"))


def test_thinking_may_be_left_to_a_model_without_it(messages: Any) -> None:
    assert ask(messages, thinking={"type": "adaptive"}).content[0].text == "hello world"


def test_notes_on_tools_are_told_with_their_description() -> None:
    tool = ToolDefinition(name="f", input_schema={"type": "object"}, description="Adds.", input_examples=[{"a": 1}])
    prompt = PromptFields(model="m", messages=[InputMessage(role="user", content="x")], tools=[tool])
    (shown,) = chat_fields(prompt).tools
    assert shown["function"]["description"] == 'Adds.\n\nExamples of its input: [{"a":1}]'


@pytest.mark.parametrize("stream", [False, True])
def test_why_a_cache_was_missed_is_not_known(http: httpx.Client, stream: bool) -> None:
    body = {"model": "scripted", "max_tokens": 9, "messages": GREET, "stream": stream}
    told = {name: http.post("/v1/messages", json={**body, "diagnostics": {"previous_message_id": name}}).text
            for name in (None, "msg_1")}  # fmt: skip
    assert '"diagnostics":null' in told[None]
    assert '"diagnostics":{"cache_miss_reason":{"type":"unavailable"}}' in told["msg_1"]
    assert "diagnostics" not in http.post("/v1/messages", json=body).text


def test_models_in_anthropics_words(server: Server) -> None:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=server.url, api_key="none", **options) as client:
        listed = list(client.models.list())
        assert [(model.id, model.type, model.max_input_tokens) for model in listed] == [
            ("scripted", "model", 512), ("alias", "model", 512),
        ]  # fmt: skip
        assert client.models.retrieve("alias").display_name == "alias"
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("no-such")


def test_sampling_and_metadata_are_taken(messages: Any) -> None:
    sampling = {"temperature": 0.3, "top_p": 0.9, "top_k": 4}  # the newest client has no words for them
    message = ask(messages, metadata={"user_id": "u"}, service_tier="auto", extra_body=sampling)
    assert message.content[0].text == "hello world"


def test_errors_in_anthropics_words(messages: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(messages, model="no-such")
    assert missing.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "the model 'no-such' does not exist; served here: scripted, alias",
        },
    }
    source = {"type": "base64", "media_type": "image/png", "data": "x"}
    with pytest.raises(anthropic.BadRequestError, match="type 'image' is not in this version"):
        ask(messages, [{"role": "user", "content": [{"type": "image", "source": source}]}])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is 0"):
        ask(messages, max_tokens=0)
    with pytest.raises(anthropic.BadRequestError, match="no_such_field"):
        ask(messages, extra_body={"no_such_field": 1})
    with pytest.raises(anthropic.BadRequestError, match="context length is 512"):
        ask(messages, "x" * 600)


@pytest.mark.parametrize("field", sorted(UNBUILT))
def test_what_is_not_built_is_refused_by_name(messages: Any, field: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=f"{field}.*not in this version"):
        ask(messages, extra_body={field: "fast" if field == "speed" else "something"})
