"""Tools and reasoning, end to end: the official client, a real socket, a scripted model."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan
from tests.server.harness import Server, encode, running

TEMPLATE = (
    "{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}"
    "{%- for message in messages %}<{{ message.role }}>"
    "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}"
    "{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}[{{ call.function.name }}:{{ call.function.arguments | tojson }}]"
    "{%- endfor %}</>{% endfor -%}"
    "{%- if add_generation_prompt %}<assistant>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "S\u00e3o \\"P\\" \U0001f600"}}\n</tool_call>'
ARGUMENTS = '{"city": "S\u00e3o \\"P\\" \U0001f600"}'
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 5}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
ANSWERS = {
    "plain": "Just words.",
    "call": CALL,
    "both": f"I will look.\n{CALL}\n{NOW}",
    "thought": "<think>\nHm, tools.\n</think>\n\n" + CALL,
    "think": "<think>\nHm.\n</think>\n\nHello.",
    "thought fits": f"<think>\nHm.\n</think>{OSLO}",
    "thought says": '<think>\nHm.\n</think>{"said": "no"}',
    "broken": "<tool_call>{oops}</tool_call>",
}


def ending(user: str) -> list[int]:
    return encode(f"<user>{user}</><assistant>")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    replies = [Reply(ending(user), encode(answer)) for user, answer in ANSWERS.items()]
    replies.append(Reply(encode("</><tool>12 degrees</><assistant>"), encode("It is cold.")))
    replies.append(Reply(encode("<user>think</><assistant><think></think>"), encode("Quick.")))
    for user, answer in (("fits", OSLO), ("says", '{"said": "no"}')):
        replies.append(Reply(encode(f"<user>{user}</><assistant><think></think>"), encode(answer)))
    parsers = ParsersPlan(
        tools="appliance.text.tools.hermes:HERMES",
        reasoning="appliance.text.reasoning.qwen3:QWEN3",
        auto_tool_choice=True,
    )
    folder = tmp_path_factory.mktemp("tools")
    with running(
        folder, Script(replies=replies), chat_template=TEMPLATE, max_model_len=2048, parsers=parsers
    ) as running_server:
        yield running_server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def ask(client: openai.OpenAI, user: str, *, stream: bool = False, **options: Any) -> ChatCompletion:
    """Whole, or streamed and put together by the client's own helper."""
    request: Any = {"model": "scripted", "messages": [{"role": "user", "content": user}], **options}
    if not stream:
        return client.chat.completions.create(**request)
    with client.chat.completions.stream(**request) as events:
        for _ in events:
            pass
        return events.get_final_completion()


def calls_of(answer: ChatCompletion) -> list[tuple[str, str]]:
    calls = answer.choices[0].message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]


def reasoning_of(answer: ChatCompletion) -> Any:
    return (answer.choices[0].message.model_extra or {}).get("reasoning_content")


@pytest.mark.parametrize("stream", [False, True])
def test_one_call(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "call", stream=stream, tools=TOOLS)
    assert calls_of(answer) == [("weather", ARGUMENTS)]
    assert not answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_after_text(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "both", stream=stream, tools=TOOLS)
    assert calls_of(answer) == [("weather", ARGUMENTS), ("now", "{}")]
    assert answer.choices[0].message.content == "I will look."
    ids = [call.id for call in answer.choices[0].message.tool_calls or []]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") for call_id in ids)


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_off(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "both", stream=stream, tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(answer) == [("weather", ARGUMENTS)]


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_before_a_call(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "thought", stream=stream, tools=TOOLS)
    assert calls_of(answer) == [("weather", ARGUMENTS)]
    assert reasoning_of(answer) == "Hm, tools."


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_without_tools(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "think", stream=stream)
    assert reasoning_of(answer) == "Hm."
    assert answer.choices[0].message.content == "Hello."
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_left_out(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "think", stream=stream, extra_body={"include_reasoning": False})
    assert reasoning_of(answer) is None
    assert answer.choices[0].message.content == "Hello."


@pytest.mark.parametrize("extra", [{"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_thinking_turned_off(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    answer = ask(client, "think", extra_body=extra)
    assert answer.choices[0].message.content == "Quick."
    assert reasoning_of(answer) is None


@pytest.mark.parametrize(
    ("begun", "reasoning", "content"), [("<think>\nH", "m.", "Hello."), ("<think>\nHm.\n</think>\n\nHe", None, "llo.")]
)
def test_an_answer_that_goes_on(http: httpx.Client, begun: str, reasoning: str | None, content: str) -> None:
    messages = [{"role": "user", "content": "think"}, {"role": "assistant", "content": begun}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    answer = http.post("/v1/chat/completions", json={"messages": messages, **options}).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (reasoning, content)


@pytest.mark.parametrize("choice", ["none", None])
def test_without_calls_the_text_stays(client: openai.OpenAI, choice: str | None) -> None:
    """Tools are forbidden, or there are none."""
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none"} if choice else {}
    answer = ask(client, "call", **options)
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_malformed_calls_are_content(client: openai.OpenAI, stream: bool) -> None:
    answer = ask(client, "broken", stream=stream, tools=TOOLS)
    assert answer.choices[0].message.content == ANSWERS["broken"]
    assert answer.choices[0].finish_reason == "stop"


def test_a_truncated_call_ends_by_length(client: openai.OpenAI) -> None:
    answer = ask(client, "call", tools=TOOLS, max_tokens=60)
    assert answer.choices[0].finish_reason == "length"
    (name, arguments), *_ = calls_of(answer)
    assert name == "weather"
    assert ARGUMENTS.startswith(arguments)


def test_several_answers(client: openai.OpenAI) -> None:
    answer = ask(client, "call", tools=TOOLS, n=2)
    assert all(choice.message.tool_calls for choice in answer.choices)
    streamed: dict[int, str] = {}
    messages: Any = [{"role": "user", "content": "call"}]
    for chunk in client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS, n=2, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                streamed[choice.index] = streamed.get(choice.index, "") + (call.function.arguments or "")
    assert streamed == {0: ARGUMENTS, 1: ARGUMENTS}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("user", ["plain", "think"])
def test_a_named_tool_is_called_by_constraint(client: openai.OpenAI, stream: bool, user: str) -> None:
    """The model has other plans, and its arguments fit the schema all the same."""
    choice = {"type": "function", "function": {"name": "weather"}}
    options: dict[str, Any] = {"extra_body": {"enable_thinking": False}}
    answer = ask(client, user, stream=stream, tools=TOOLS, tool_choice=choice, max_tokens=100, **options)
    ((name, arguments),) = calls_of(answer)
    assert name == "weather"
    assert list(json.loads(arguments)) == ["city"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert not answer.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_made_by_constraint(client: openai.OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {"parallel_tool_calls": False, "extra_body": {"enable_thinking": False}}
    answer = ask(client, "plain", stream=stream, tools=TOOLS, tool_choice="required", max_tokens=200, **options)
    ((name, arguments),) = calls_of(answer)
    assert name in ("weather", "now")
    assert isinstance(json.loads(arguments), dict)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_some_tools_are_allowed(client: openai.OpenAI) -> None:
    allowed = [{"type": "function", "function": {"name": "now"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}}
    options: dict[str, Any] = {"parallel_tool_calls": False, "extra_body": {"enable_thinking": False}}
    answer = ask(client, "plain", tools=TOOLS, tool_choice=choice, max_tokens=200, **options)
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(answer)] == [("now", {})]


def test_a_constraint_begins_behind_the_reasoning(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    wish: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    options: dict[str, Any] = {"guided_whitespace_pattern": " ?"}
    answer = ask(client, "think", response_format=wish, max_tokens=100, extra_body=options)
    assert reasoning_of(answer) == "Hm."
    assert json.loads(answer.choices[0].message.content or "") == {"a": 1}
    quick = ask(client, "think", response_format=wish, max_tokens=100, extra_body={**options, "enable_thinking": False})
    assert json.loads(quick.choices[0].message.content or "") == {"a": 1}


SAID = {
    "type": "object",
    "properties": {"said": {"enum": ["yes", "no"]}},
    "required": ["said"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinks", [False, True])
def test_a_call_or_an_answer_of_a_schema(client: openai.OpenAI, stream: bool, thinks: bool) -> None:
    """Both may be asked for at once: the model decides, and either one fits."""
    wish: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SAID}}
    both: dict[str, Any] = {"tools": TOOLS, "max_tokens": 200, "response_format": wish, "stream": stream}
    both["extra_body"] = {"enable_thinking": thinks, "guided_whitespace_pattern": " ?"}
    called = ask(client, "thought fits" if thinks else "fits", **both)
    assert calls_of(called) == [("weather", '{"city": "Oslo"}')]
    assert not called.choices[0].message.content
    assert called.choices[0].finish_reason == "tool_calls"
    answered = ask(client, "thought says" if thinks else "says", **both)
    assert not answered.choices[0].message.tool_calls
    assert answered.choices[0].message.content == '{"said": "no"}'
    assert answered.choices[0].finish_reason == "stop"
    assert reasoning_of(answered) == ("Hm." if thinks else None)


def test_tools_that_must_be_called_win_over_a_form(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"response_format": {"type": "json_object"}, "max_tokens": 200}
    options["extra_body"] = {"enable_thinking": False}
    answer = ask(client, "plain", tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False, **options)
    assert [(name, json.loads(text)) for name, text in calls_of(answer)] == [("now", {})]


def test_results_go_into_the_history(client: openai.OpenAI, http: httpx.Client) -> None:
    first = ask(client, "call", tools=TOOLS)
    message = first.choices[0].message
    call_id = (message.tool_calls or [])[0].id
    messages: Any = [
        {"role": "user", "content": "call"},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call_id, "content": "12 degrees"},
    ]
    answer = client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "It is cold."
    tokens = http.post("/tokenize", json={"messages": messages, "tools": TOOLS}).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert f"[weather:{ARGUMENTS}]" in text  # an object for the template, not text in quotes
    assert '"name": "now"' in text


BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "nothing"}}}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": "x"}),
    ("tools[0].type", {"tools": [{"type": "web_search", "function": {"name": "a"}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {}}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools[0].function.x", {"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}),
    ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]}),
    ("tools", {"tools": [TOOLS[0], TOOLS[0]]}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "sometimes"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice.function.name", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}),
    (
        "tools[0].function.parameters.properties.a.type",
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": BAD_SCHEMA}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    ("tool_choice.allowed_tools.tools", {"tools": TOOLS, "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}),
    ("functions", {"functions": [{"name": "x"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=[f"{param}-{place}" for place, (param, _) in enumerate(WRONG)])
def test_wrong_tools_are_named(http: httpx.Client, param: str, fields: dict[str, Any]) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "plain"}], **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param, response.text


def test_no_parser_no_auto(tmp_path: Any) -> None:
    with running(tmp_path, Script(replies=[])) as server, server.http() as http:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 1}
        response = http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert "decoding.tool_parser" in response.json()["error"]["message"]
        assert http.post("/v1/chat/completions", json={**body, "tool_choice": "none"}).status_code == 200


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_deep_schemas_hurt_nobody(http: httpx.Client, choice: str) -> None:
    schema: Any = {"type": "string"}
    for _ in range(450):
        schema = {"type": "object", "properties": {"a": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"model": "scripted", "messages": [{"role": "user", "content": "plain"}], "max_tokens": 1}
    response = http.post("/v1/chat/completions", json={**body, "tools": tools, "tool_choice": choice})
    assert response.status_code in (200, 400), response.text
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_calls_of_the_best_answer(client: openai.OpenAI) -> None:
    answer = ask(client, "call", tools=TOOLS, extra_body={"best_of": 2})
    assert calls_of(answer) == [("weather", ARGUMENTS)]
    assert answer.choices[0].finish_reason == "tool_calls"
