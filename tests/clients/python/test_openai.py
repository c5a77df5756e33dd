"""`openai`, strict about every answer. What a real model adds to tests/server, which has the cases."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from served import BASE, KEY, MODEL, ONE_AT_A_TIME

OPTIONS: dict[str, Any] = {"base_url": BASE, "api_key": KEY, "max_retries": 0, "_strict_response_validation": True}
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo? Use the tool."}]
ADA: list[Any] = [{"role": "user", "content": "Ada Lovelace is 36 years old. Who is it? Answer as JSON."}]


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**OPTIONS) as client:
        yield client


def test_streamed_and_whole_calls_are_the_same(client: openai.OpenAI, weather: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "tools": [weather], "temperature": 0, "max_tokens": 80}
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        whole = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_completion().choices[0]
        assert whole.finish_reason == streamed.finish_reason == "tool_calls"
        [call], [other] = whole.message.tool_calls, streamed.message.tool_calls
        assert json.loads(call.function.arguments)["city"]
        assert call.function.arguments == other.function.arguments
        assert "tool_calls.function.arguments.delta" in kinds
        assert kinds[-1] == "tool_calls.function.arguments.done"


def test_a_turn_with_a_tools_answer(client: openai.OpenAI, weather: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "tools": [weather], "temperature": 0, "max_tokens": 80}
    message = client.chat.completions.create(**asked, messages=ASK).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "11 degrees and rain"}
    answer = client.chat.completions.create(**asked, messages=[*ASK, message, result], tool_choice="none").choices[0]
    assert answer.message.content
    assert not answer.message.tool_calls


def test_parse(client: openai.OpenAI, person: Any) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": ADA, "response_format": person, "temperature": 0}
    parsed = client.chat.completions.parse(**asked, max_tokens=80).choices[0].message.parsed
    assert (parsed.name, parsed.age) == ("Ada Lovelace", 36)
    with client.chat.completions.stream(**asked, max_tokens=80) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == parsed


def test_parsed_calls(client: openai.OpenAI, person: Any) -> None:
    tool = openai.pydantic_function_tool(person, name="person", description="Note a person.")
    completion = client.chat.completions.parse(
        model=MODEL, messages=ADA, tools=[tool], tool_choice="required", temperature=0, max_tokens=80
    )
    assert completion.choices[0].message.tool_calls[0].function.parsed_arguments.age == 36


def test_responses(client: openai.OpenAI, person: Any) -> None:
    first = client.responses.create(model=MODEL, input="Say only: hello", temperature=0, max_output_tokens=20)
    assert "hello" in first.output_text.lower()
    with client.responses.stream(
        model=MODEL, input="Again.", previous_response_id=first.id, temperature=0, max_output_tokens=20
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
    parsed = client.responses.parse(model=MODEL, input=ADA, text_format=person, temperature=0, max_output_tokens=80)
    assert parsed.output_parsed.age == 36
    client.responses.delete(first.id)


async def test_async_streams_beside_each_other() -> None:
    async with openai.AsyncOpenAI(**OPTIONS) as client:

        async def count(last: int) -> str:
            asked: list[Any] = [{"role": "user", "content": f"Count from 1 to {last}, separated by commas."}]
            async with client.chat.completions.stream(
                model=MODEL, messages=asked, temperature=0, max_tokens=60
            ) as stream:
                return "".join([event.delta async for event in stream if event.type == "content.delta"])

        texts = await asyncio.gather(*map(count, (3, 5, 7, 9)))
    assert all("2" in text for text in texts)
    assert len(set(texts)) == 4


async def test_a_batch_by_file(client: openai.OpenAI) -> None:
    lines = [
        {"custom_id": str(place), "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": f"Say {place}"}]}}
        for place in range(3)
    ]  # fmt: skip
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "clients"}
    )
    async with asyncio.timeout(60):
        while (batch := client.batches.retrieve(batch.id)).status not in {"completed", "failed", "expired"}:
            await asyncio.sleep(0.5)
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"0", "1", "2"}
    assert all(answer["response"]["status_code"] == 200 for answer in answers)
    client.files.delete(file.id)


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such", messages=ADA)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(model=MODEL, messages=ADA, max_tokens=200)


@pytest.mark.skipif(not ONE_AT_A_TIME, reason="the server has no keys")
async def test_a_refusal_for_the_time_is_tried_again() -> None:
    """The key has one request at once: the second is refused with Retry-After until the first has ended."""
    options = {**OPTIONS, "api_key": ONE_AT_A_TIME}
    long: Any = {"model": MODEL, "messages": ADA, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
    short: Any = {"model": MODEL, "messages": ADA, "max_tokens": 4}
    async with openai.AsyncOpenAI(**options) as client:
        stream = await client.chat.completions.create(**long, stream=True)
        await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(**short)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        second = asyncio.create_task(client.with_options(max_retries=5).chat.completions.create(**short))
        await asyncio.sleep(0.2)  # for its first try
        await stream.close()
        assert (await second).usage.completion_tokens > 0


@pytest.mark.skipif(not ONE_AT_A_TIME, reason="the server has no keys")
def test_a_wrong_key() -> None:
    with openai.OpenAI(**{**OPTIONS, "api_key": "wrong"}) as client, pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model=MODEL, messages=ADA)
