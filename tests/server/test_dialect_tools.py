"""Tools and reasoning in Anthropic's and in the Responses API's words, whole and streamed, by their clients."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pydantic
import pytest

from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan
from tests.server.harness import Server, encode, running
from tests.server.test_tools import ANSWERS, ARGUMENTS, TEMPLATE, ending
from tests.server.test_tools import TOOLS as CHAT_TOOLS

RESPONSE_TOOLS: Any = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
TOOLS: Any = [
    {"name": tool["function"]["name"], "input_schema": tool["function"].get("parameters", {"type": "object"})}
    for tool in CHAT_TOOLS
]
SAID = "<tool>12 degrees</><assistant>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    replies = [Reply(ending(user), encode(answer)) for user, answer in ANSWERS.items()]
    replies.append(Reply(encode(SAID), encode("It is cold.")))
    parsers = ParsersPlan(
        tools="appliance.text.tools.hermes:HERMES",
        reasoning="appliance.text.reasoning.qwen3:QWEN3",
        auto_tool_choice=True,
    )
    folder = tmp_path_factory.mktemp("dialect-tools")
    script = Script(replies=replies)
    with running(folder, script, chat_template=TEMPLATE, max_model_len=2048, parsers=parsers) as running_server:
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


def message(messages: Any, user: str, *, stream: bool, **options: Any) -> Any:
    asked = {"model": "scripted", "max_tokens": 400, "messages": [{"role": "user", "content": user}], **options}
    if not stream:
        return messages.create(**asked)
    with messages.stream(**asked) as events:
        return events.get_final_message()


def response(responses: Any, user: Any, *, stream: bool, **options: Any) -> Any:
    asked = {"model": "scripted", "input": user, **options}
    if not stream:
        return responses.create(**asked)
    with responses.stream(**asked) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_tools(messages: Any, stream: bool) -> None:
    answer = message(messages, "both", stream=stream, tools=TOOLS)
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    assert answer.stop_reason == "tool_use"
    assert (answer.content[1].name, answer.content[1].input) == ("weather", json.loads(ARGUMENTS))
    assert (answer.content[2].name, answer.content[2].input) == ("now", {})
    assert len({block.id for block in answer.content[1:]}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_thinking(messages: Any, stream: bool) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = message(messages, "thought", stream=stream, tools=TOOLS, thinking=thinking)
    assert [block.type for block in answer.content] == ["thinking", "tool_use"]
    assert answer.content[0].thinking.strip() == "Hm, tools."
    plain = message(messages, "think", stream=stream)
    assert [block.type for block in plain.content] == ["thinking", "text"]
    assert plain.content[1].text.strip() == "Hello."


def test_what_claude_code_sends(server: Server) -> None:
    """Every field of its requests, with markers of the cache, edits of the context and adaptive thinking."""
    marker = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system: Any = [{"type": "text", "text": "You are Claude Code.", **marker}]
    asked: Any = [{"role": "user", "content": [{"type": "text", "text": "thought", **marker}]}]
    tools = [*TOOLS[:-1], {**TOOLS[-1], **marker, "eager_input_streaming": True}]
    edits: Any = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=server.url, auth_token="none", **options) as client:
        with client.beta.messages.stream(
            model="scripted", max_tokens=32_000, system=system, messages=asked, tools=tools,
            thinking={"type": "adaptive"}, output_config={"effort": "medium"}, context_management={"edits": edits},
            metadata={"user_id": "user_0"}, betas=["claude-code-20250219", "context-management-2025-06-27"],
        ) as events:  # fmt: skip
            message = events.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "tool_use"]
        assert message.context_management is not None
        assert message.context_management.applied_edits == []
        counted = client.beta.messages.count_tokens(model="scripted", messages=asked, system=system, tools=tools)
    cached = message.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == message.usage.input_tokens + cached


def test_events_of_blocks_do_not_overlap(messages: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": "thought"}]
    events = list(messages.create(model="scripted", max_tokens=400, messages=asked, tools=TOOLS, stream=True))
    open_block: int | None = None
    for event in events:
        if event.type == "content_block_start":
            assert open_block is None
            open_block = event.index
        elif event.type == "content_block_delta":
            assert event.index == open_block
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block = None
    kinds = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert kinds[0] == "thinking_delta"
    assert "signature_delta" in kinds
    assert kinds[-1] == "input_json_delta"


def test_tool_results_go_into_the_history(messages: Any, responses: Any) -> None:
    use = {"type": "tool_use", "id": "call_1", "name": "now", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "12 degrees"}]}
    history: list[Any] = [
        {"role": "user", "content": "cold?"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    answer = messages.create(model="scripted", max_tokens=50, messages=history, tools=TOOLS)
    assert answer.content[0].text == "It is cold."
    first = response(responses, "call", stream=False, tools=RESPONSE_TOOLS)
    output = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "12 degrees"}]
    then = response(responses, output, stream=False, previous_response_id=first.id, tools=RESPONSE_TOOLS)
    assert then.output_text == "It is cold."


def test_forced_tools(messages: Any, responses: Any) -> None:
    choice = {"type": "tool", "name": "now"}
    answer = message(messages, "plain", stream=False, tools=TOOLS, tool_choice=choice, thinking={"type": "disabled"})
    assert [(block.type, block.name) for block in answer.content] == [("tool_use", "now")]
    named = {"type": "function", "name": "now"}
    quick = {"chat_template_kwargs": {"enable_thinking": False}}
    made = response(responses, "plain", stream=False, tools=RESPONSE_TOOLS, tool_choice=named, extra_body=quick)
    assert [(item.type, item.name) for item in made.output] == [("function_call", "now")]
    none = message(messages, "plain", stream=False, tools=TOOLS, tool_choice={"type": "none"})
    assert none.content[0].text == "Just words."


@pytest.mark.parametrize("stream", [False, True])
def test_responses_with_tools(responses: Any, stream: bool) -> None:
    made = response(responses, "both", stream=stream, tools=RESPONSE_TOOLS)
    assert [item.type for item in made.output] == ["message", "function_call", "function_call"]
    assert (made.output[1].name, made.output[1].arguments) == ("weather", ARGUMENTS)
    assert made.output[1].call_id.startswith("call_")
    assert made.status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_responses_with_reasoning(responses: Any, stream: bool) -> None:
    made = response(responses, "thought", stream=stream, tools=RESPONSE_TOOLS)
    assert [item.type for item in made.output] == ["reasoning", "function_call"]
    assert made.output[0].content[0].text.strip() == "Hm, tools."
    assert made.usage.output_tokens_details.reasoning_tokens > 0


def test_items_of_a_stream_follow_each_other(responses: Any) -> None:
    events = list(responses.create(model="scripted", input="thought", tools=RESPONSE_TOOLS, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    added = [place for place, kind in enumerate(kinds) if kind == "output_item.added"]
    done = [place for place, kind in enumerate(kinds) if kind == "output_item.done"]
    assert added[0] < done[0] < added[1] < done[1]
    assert kinds[added[1] + 1] == "function_call_arguments.delta"
    assert kinds[done[1] - 1] == "function_call_arguments.done"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output(messages: Any, responses: Any, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    answer = message(messages, "odd", stream=stream, output_config=config, thinking={"type": "disabled"})
    assert json.loads(answer.content[-1].text) == {"a": 7}
    text = {"format": {"type": "json_schema", "name": "odd", "schema": schema, "strict": True}}
    quick = {"chat_template_kwargs": {"enable_thinking": False}}
    made = response(responses, "odd", stream=stream, text=text, extra_body=quick)
    assert json.loads(made.output_text) == {"a": 7}


def test_parsed_responses(responses: Any) -> None:
    class Answer(pydantic.BaseModel):
        a: Literal[7]

    quick = {"chat_template_kwargs": {"enable_thinking": False}}
    made = responses.parse(model="scripted", input="odd", text_format=Answer, extra_body=quick)
    assert made.output_parsed == Answer(a=7)


def test_thinking_needs_a_parser(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("plain"), Script()) as plain, plain.http() as http:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        asked = [{"role": "user", "content": "x"}]
        body = {"model": "scripted", "max_tokens": 9, "messages": asked, "thinking": thinking}
        refused = http.post("/v1/messages", json=body)
        assert refused.status_code == 400
        assert "reasoning_parser" in refused.json()["error"]["message"]
