"""Tools and reasoning in the other dialects: Anthropic's Messages and OpenAI's Responses, through their clients."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan
from tests.server.harness import Server, encode, running

TEMPLATE = (
    "{%- for message in messages %}<{{ message.role }}>{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}[{{ call.function.name }}:{{ call.function.arguments | tojson }}]"
    "{%- endfor %}</>{% endfor -%}{%- if add_generation_prompt %}<assistant>{% endif %}"
)
CITY = {"city": "S\u00e3o \U0001f600"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWER = (
    "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n"
    + json.dumps({"name": "weather", "arguments": CITY}, ensure_ascii=False)
    + '\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    replies = [
        Reply(encode("<user>go</><assistant>"), encode(ANSWER)),
        Reply(encode("</><tool>12 degrees</><assistant>"), encode("It is cold.")),
    ]
    parsers = ParsersPlan(
        tools="appliance.text.tools.hermes:HERMES",
        reasoning="appliance.text.reasoning.qwen3:QWEN3",
        auto_tool_choice=True,
    )
    with running(
        tmp_path_factory.mktemp("dialects"),
        Script(replies=replies),
        chat_template=TEMPLATE,
        max_model_len=2048,
        parsers=parsers,
        apis=["openai", "anthropic", "responses"],
    ) as running_server:
        yield running_server


@pytest.fixture
def messages(server: Server) -> Iterator[Any]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=server.url, api_key="none", **options) as client:
        yield client.messages


@pytest.fixture
def responses(server: Server) -> Iterator[Any]:
    with server.openai() as client:
        yield client.responses


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_tool_use(messages: Any, stream: bool) -> None:
    tools = [{"name": "weather", "input_schema": SCHEMA}, {"name": "now", "input_schema": {"type": "object"}}]
    asked: dict[str, Any] = {"model": "scripted", "max_tokens": 300, "tools": tools}
    go = {"role": "user", "content": "go"}
    if stream:
        with messages.stream(messages=[go], **asked) as events:
            message = events.get_final_message()
    else:
        message = messages.create(messages=[go], **asked)
    assert message.stop_reason == "tool_use"
    thinking, text, weather, now = message.content
    assert (thinking.thinking, text.text) == ("Hm.", "I look.")
    assert (weather.name, weather.input) == ("weather", CITY)
    assert (now.name, now.input) == ("now", {})
    results = [{"type": "tool_result", "tool_use_id": weather.id, "content": "12 degrees"}]
    earlier = [{"type": "tool_use", "id": weather.id, "name": "weather", "input": CITY}]
    history = [go, {"role": "assistant", "content": earlier}, {"role": "user", "content": results}]
    assert messages.create(messages=history, **asked).content[0].text == "It is cold."


def test_anthropic_tool_by_name(messages: Any) -> None:
    tools = [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]
    choice = {"type": "tool", "name": "now"}
    asked: Any = {"model": "scripted", "max_tokens": 50, "tools": tools, "tool_choice": choice}
    message = messages.create(messages=[{"role": "user", "content": "words"}], **asked)
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "now", {})


@pytest.mark.parametrize("stream", [False, True])
def test_responses_function_calls(responses: Any, stream: bool) -> None:
    tools: Any = [
        {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False},
        {"type": "function", "name": "now", "parameters": None, "strict": False},
    ]
    asked: dict[str, Any] = {"model": "scripted", "input": "go", "tools": tools}
    if stream:
        final = None
        for event in responses.create(stream=True, **asked):
            final = event
        assert final is not None
        assert final.type == "response.completed"
        made = final.response
    else:
        made = responses.create(**asked)
    calls = [item for item in made.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", CITY), ("now", {})]
    assert made.output_text == "I look."
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "12 degrees"}
    history: Any = [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": calls[0].call_id, "name": "weather", "arguments": calls[0].arguments},
        result,
    ]
    assert responses.create(**{**asked, "input": history}).output_text == "It is cold."
