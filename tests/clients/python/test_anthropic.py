"""`anthropic`, strict about every answer. What a real model adds to tests/server, which has the cases."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from served import KEY, MODEL, ONE_AT_A_TIME, ROOT

OPTIONS: dict[str, Any] = {"base_url": ROOT, "api_key": KEY, "max_retries": 0, "_strict_response_validation": True}
GREEDY = {"temperature": 0}  # this client has no such parameter any more, the server has
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo? Use the tool."}]

STORY: list[Any] = [{"role": "user", "content": "Tell a long story of a king, a fox and a mountain."}]


@pytest.fixture
def messages() -> Iterator[Any]:
    with anthropic.Anthropic(**OPTIONS) as client:
        yield client.messages


@pytest.fixture
def tool(weather: dict[str, Any]) -> dict[str, Any]:
    function = weather["function"]
    return {"name": "weather", "description": function["description"], "input_schema": function["parameters"]}


def test_whole_and_streamed(messages: Any) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "max_tokens": 20, "extra_body": GREEDY, "system": "You answer in one word.",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }  # fmt: skip
    whole = messages.create(**asked)
    assert "Paris" in whole.content[0].text
    with messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = messages.count_tokens(model=MODEL, system=asked["system"], messages=asked["messages"])
    assert counted.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_turn_with_a_tools_answer(messages: Any, tool: dict[str, Any], choice: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 80, "extra_body": GREEDY, "tools": [tool]}
    first = messages.create(**asked, messages=ASK, tool_choice=choice)
    assert first.stop_reason == "tool_use"
    use = next(block for block in first.content if block.type == "tool_use")
    assert use.input["city"]
    with messages.stream(**asked, messages=ASK, tool_choice=choice) as stream:
        final = stream.get_final_message()
    assert next(block for block in final.content if block.type == "tool_use").input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "11 degrees and rain"}
    history = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    answer = messages.create(**asked, messages=history, tool_choice={"type": "none"})
    assert [block.type for block in answer.content] == ["text"]


def test_parse(messages: Any, person: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": "Ada Lovelace is 36 years old. Who is it? Answer as JSON."}]
    message = messages.parse(model=MODEL, max_tokens=80, extra_body=GREEDY, messages=asked, output_format=person)
    assert message.parsed_output.age == 36


async def test_async_stream() -> None:
    async with (
        anthropic.AsyncAnthropic(**OPTIONS) as client,
        client.messages.stream(
            model=MODEL, max_tokens=12, messages=[{"role": "user", "content": "Say hello"}]
        ) as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
        assert (await stream.get_final_message()).content[0].text == text


def test_errors_are_the_clients_own(messages: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        messages.create(model="no-such", max_tokens=5, messages=ASK)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        messages.create(model=MODEL, max_tokens=0, messages=ASK)
    with anthropic.Anthropic(**{**OPTIONS, "timeout": 0.05}) as client, pytest.raises(anthropic.APITimeoutError):
        client.messages.create(model=MODEL, max_tokens=200, messages=ASK)


@pytest.mark.skipif(not ONE_AT_A_TIME, reason="the server has no keys")
async def test_a_refusal_for_the_time_is_tried_again() -> None:
    """The key has one request at once: the second is refused with Retry-After until the first has ended."""
    options = {**OPTIONS, "api_key": ONE_AT_A_TIME}
    long: Any = {"model": MODEL, "messages": STORY, "max_tokens": 400}
    short: Any = {"model": MODEL, "messages": ASK, "max_tokens": 4}
    async with anthropic.AsyncAnthropic(**options) as client:
        stream = await client.messages.create(**long, stream=True)
        await anext(aiter(stream))
        with pytest.raises(anthropic.RateLimitError) as refused:
            await client.messages.create(**short)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        second = asyncio.create_task(client.with_options(max_retries=5).messages.create(**short))
        await asyncio.sleep(0.2)  # for its first try
        await stream.close()
        assert (await second).usage.output_tokens > 0


@pytest.mark.skipif(not ONE_AT_A_TIME, reason="the server has no keys")
def test_a_wrong_key() -> None:
    with anthropic.Anthropic(**{**OPTIONS, "api_key": "wrong"}) as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model=MODEL, max_tokens=4, messages=ASK)
