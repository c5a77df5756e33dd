"""`litellm`: as an OpenAI server, as a vLLM server, as Anthropic, and Responses."""

import json
from typing import Any

import litellm
import pytest
from served import BASE, KEY, MODEL, ONE_AT_A_TIME, ROOT

WAYS = {"openai": BASE, "hosted_vllm": BASE, "anthropic": ROOT}
HELLO: list[Any] = [{"role": "user", "content": "Say only: hello"}]
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo? Use the tool."}]
ADA: list[Any] = [{"role": "user", "content": "Ada Lovelace is 36 years old. Who is it? Answer as JSON."}]


@pytest.fixture(params=WAYS)
def target(request: pytest.FixtureRequest) -> dict[str, Any]:
    way = request.param
    return {
        "model": f"{way}/{MODEL}", "api_base": WAYS[way], "api_key": KEY, "temperature": 0, "max_tokens": 80,
        "num_retries": 0,
    }  # fmt: skip


def test_whole_and_streamed(target: dict[str, Any]) -> None:
    whole = litellm.completion(**target, messages=HELLO)
    chunks = list(litellm.completion(**target, messages=HELLO, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert "hello" in whole.choices[0].message.content.lower()
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason
    assert built.usage.completion_tokens == whole.usage.completion_tokens > 0


def test_tools(target: dict[str, Any], weather: dict[str, Any]) -> None:
    asked = {**target, "tools": [weather]}
    message = litellm.completion(**asked, messages=ASK).choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)["city"]) == ("weather", "Oslo")
    built = litellm.stream_chunk_builder(list(litellm.completion(**asked, messages=ASK, stream=True)))
    [streamed] = built.choices[0].message.tool_calls
    assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "11 degrees and rain"}
    answer = litellm.completion(**asked, messages=[*ASK, message, result], tool_choice="none")
    assert answer.choices[0].message.content


def test_a_type(target: dict[str, Any], person: Any) -> None:
    answer = litellm.completion(**target, messages=ADA, response_format=person)
    assert person.model_validate_json(answer.choices[0].message.content).age == 36


async def test_async_stream(target: dict[str, Any]) -> None:
    stream = await litellm.acompletion(**target, messages=HELLO, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert "hello" in text.lower()


def test_responses() -> None:
    server: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY, "max_output_tokens": 20}
    answer = litellm.responses(**server, input="Say only: hello", temperature=0)
    assert "hello" in answer.output[0].content[0].text.lower()
    events = list(litellm.responses(**server, input="Say only: hello", temperature=0, stream=True))
    assert events[0].type == "response.created"
    assert "hello" in "".join(getattr(event, "delta", "") for event in events).lower()
    assert events[-1].type == "response.completed"


def test_errors_are_the_clients_own(target: dict[str, Any]) -> None:
    way = target["model"].split("/")[0]
    with pytest.raises(litellm.NotFoundError, match="does not exist"):
        litellm.completion(**{**target, "model": f"{way}/no-such"}, messages=HELLO)
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        litellm.completion(**{**target, "max_tokens": -1}, messages=HELLO)


@pytest.mark.skipif(not ONE_AT_A_TIME, reason="the server has no keys")
def test_a_wrong_key(target: dict[str, Any]) -> None:
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**target, "api_key": "wrong"}, messages=HELLO)
