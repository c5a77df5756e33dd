"""Tools of servers in the Responses API, end to end: the official client, a real socket, real tool servers."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan, ToolServerPlan
from tests.server.harness import Server, encode, running, wait_until
from tests.server.test_tools import NOW, OSLO, TEMPLATE, ending

HERE = Path(__file__).parent / "mcp"
FUNCTION = {"type": "function", "name": "now"}


def tool(label: str = "faulty", approval: Any = "never", **changes: Any) -> Any:
    return {"type": "mcp", "server_label": label, "require_approval": approval, **changes}


def plan(name: str, script: str, *arguments: str, **changes: Any) -> ToolServerPlan:
    command = (sys.executable, str(HERE / script), *arguments)
    settings = {"timeout_s": 60.0, "max_result_bytes": 4000, "max_calls": 3, **changes}
    return ToolServerPlan(name=name, command=command, **settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    answers = {
        "call": OSLO, "twice": f"Look.\n{OSLO}\n{OSLO}", "both": f"{OSLO}\n{NOW}", "bad": '<tool_call>\n{"name": '
        '"weather", "arguments": {"city": "Atlantis"}}\n</tool_call>', "plain": "Just words.",
    }  # fmt: skip
    replies = [Reply(ending(user), encode(answer)) for user, answer in answers.items()]
    said = ("Oslo: 12 degrees", "Error executing tool weather", "Error: the server has ended")
    replies += [Reply(encode(f"<tool>{text}</><assistant>"), encode("It is cold.")) for text in said]
    refused = "<tool>The user has refused this call. Not today.</><assistant>"
    replies.append(Reply(encode(refused), encode("Then not.")))
    spent = "<tool>Error: no call is left: max_tool_calls of the request or max_calls of the server</><assistant>"
    replies.append(Reply(encode(spent), encode("I was stopped.")))
    replies.append(Reply(encode("<tool>well</><assistant>"), encode(OSLO)))
    parsers = ParsersPlan(tools="appliance.text.tools.hermes:HERMES", auto_tool_choice=True)
    servers = [
        plan("official", "official.py"), plan("faulty", "faulty.py", "well"), plan("dies", "faulty.py", "dies"),
        plan("injected", "faulty.py", "injected"), plan("none", "no_such.py", timeout_s=5.0),
        plan("hangs", "faulty.py", "hangs"), plan("one", "official.py", allowed_tools=("now",)),
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("server-tools")
    changes = {"chat_template": TEMPLATE, "max_model_len": 4096, "num_blocks": 1024, "parsers": parsers}
    with running(folder, Script(replies=replies), tool_servers=servers, **changes) as running_server:
        yield running_server


@pytest.fixture
def responses(server: Server) -> Iterator[Any]:
    with server.openai() as client:
        yield client.responses


def respond(responses: Any, user: Any, *, stream: bool = False, **options: Any) -> Any:
    asked = {"model": "scripted", "input": user, **options}
    if not stream:
        return responses.create(**asked)
    with responses.stream(**asked) as events:
        return events.get_final_response()


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_and_goes_on(responses: Any, server: Server, stream: bool) -> None:
    pytest.importorskip("mcp")
    made = respond(responses, "call", stream=stream, tools=[tool("official")])
    assert kinds(made) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, message = made.output
    assert ([each.name for each in listed.tools], listed.server_label) == (["weather", "now"], "official")
    assert (call.name, call.arguments, call.output) == ("weather", '{"city": "Oslo"}', "Oslo: 12 degrees")
    assert (call.error, call.status, made.status) == (None, "completed", "completed")
    assert message.content[0].text == made.output_text == "It is cold."
    log = server.log.read_text()
    [line] = [line for line in log.splitlines() if made.id in line]
    assert all(each in line for each in ("server=official", "tool=weather", "bytes=16", "outcome=done"))
    assert "Oslo" not in line
    first = responses.create(model="scripted", input="plain", tools=[tool("official")])
    assert made.usage.input_tokens > 2 * first.usage.input_tokens  # of both turns
    assert made.usage.output_tokens > len(encode(OSLO))


def test_events_are_numbered_and_in_order(responses: Any) -> None:
    events = list(responses.create(model="scripted", input="call", stream=True, tools=[tool("official")]))
    found = [event.type.removeprefix("response.") for event in events]
    names = list(dict.fromkeys(found))
    assert names[:12] == [
        "created", "in_progress", "output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed",
        "output_item.done", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done",
        "mcp_call.completed", "content_part.added", "output_text.delta",
    ]  # fmt: skip
    assert (found.count("output_item.added"), found.count("output_item.done")) == (3, 3)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.mcp_call_arguments.delta"]
    assert "".join(deltas) == '{"city": "Oslo"}'
    assert events[0].response.output == []


def test_an_error_of_a_tool_is_told_to_the_model(responses: Any) -> None:
    made = respond(responses, "bad", tools=[tool("official")])
    call = made.output[1]
    assert (call.status, call.error.type) == ("failed", "mcp_tool_execution_error")
    assert made.output_text == "It is cold."
    died = respond(responses, "call", tools=[tool("dies")])
    assert died.output[1].error.message == "the server has ended"
    assert (died.status, died.output_text) == ("completed", "It is cold.")


def test_a_tool_never_takes_the_name_of_a_callers_function(responses: Any) -> None:
    sdk = pytest.importorskip("openai")
    named = [{**FUNCTION, "name": name} for name in ("weather", "official__weather")]
    with pytest.raises(sdk.BadRequestError, match="two tools would have the name 'official__weather'"):
        respond(responses, "plain", tools=[*named, tool("official")])


def test_a_server_that_is_not_there_offers_nothing(responses: Any) -> None:
    made = respond(responses, "plain", tools=[tool("none")])
    assert kinds(made) == ["mcp_list_tools", "message"]
    assert "has ended" in made.output[0].error
    assert made.output_text == "Just words."


def test_names_that_are_no_names_reach_no_prompt(responses: Any) -> None:
    made = respond(responses, "plain", tools=[tool("injected")])
    listed = made.output[0]
    assert [each.name for each in listed.tools] == ["weather"]
    assert listed.error == "1 tools have names that no model may be shown"


def test_a_call_of_the_callers_function_ends_the_response(responses: Any) -> None:
    tools = [tool("official", allowed_tools=["weather"]), FUNCTION]
    made = respond(responses, "both", tools=tools)
    assert kinds(made) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert made.output[1].output == "Oslo: 12 degrees"
    output = {"type": "function_call_output", "call_id": made.output[2].call_id, "output": "Oslo: 12 degrees"}
    then = respond(responses, [output], tools=tools, previous_response_id=made.id)
    assert then.output_text == "It is cold."


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_waits_for_approval(responses: Any, stream: bool) -> None:
    tools = [tool("official", "always")]
    asked = respond(responses, "call", stream=stream, tools=tools)
    assert kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]
    request = asked.output[1]
    assert (request.name, request.arguments, request.server_label) == ("weather", '{"city": "Oslo"}', "official")
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    options = {"stream": stream, "tools": tools, "previous_response_id": asked.id}
    made = respond(responses, [answer], **options)
    assert kinds(made) == ["mcp_list_tools", "mcp_call", "message"]
    assert (made.output[1].approval_request_id, made.output[1].output) == (request.id, "Oslo: 12 degrees")
    refused = respond(responses, [{**answer, "approve": False, "reason": "Not today."}], **options)
    assert (kinds(refused), refused.output_text) == (["mcp_list_tools", "message"], "Then not.")
    read_only = {"never": {"read_only": True}}
    assert kinds(respond(responses, "call", tools=[tool("official", read_only)]))[1] == "mcp_call"


def test_calls_end_with_the_budget(responses: Any) -> None:
    made = respond(responses, "twice", tools=[tool("official")], max_tool_calls=1)
    calls = [item for item in made.output if item.type == "mcp_call"]
    assert sorted(call.status for call in calls) == ["completed", "failed"]
    one = respond(responses, "twice", tools=[tool("official")], parallel_tool_calls=False)
    assert kinds(one) == ["mcp_list_tools", "message", "mcp_call", "message"]


def test_in_the_background_and_cancelled(responses: Any) -> None:
    made = respond(responses, "call", tools=[tool("official")], background=True)
    wait_until(lambda: responses.retrieve(made.id).status == "completed", "the response does not end", 20.0)
    assert responses.retrieve(made.id).output_text == "It is cold."
    hung = respond(responses, "call", tools=[tool("hangs")], background=True)
    assert responses.cancel(hung.id).status == "cancelled"
    assert responses.retrieve(hung.id).status == "cancelled"


def test_a_choice_among_the_tools_of_a_server(responses: Any) -> None:
    choice = {"type": "mcp", "server_label": "official", "name": "now"}
    made = respond(responses, "plain", tools=[tool("official")], tool_choice=choice, max_output_tokens=60)
    assert (made.output[1].type, made.output[1].name, made.output[1].output) == ("mcp_call", "now", "noon")


@pytest.mark.parametrize(
    ("param", "tools"),
    [
        ("tools[0].server_label", [tool("unknown")]), ("tools[0].server_label", [{"type": "mcp"}]),
        ("tools[0].server_url", [tool("other", server_url="http://127.0.0.1:1/mcp")]),
        ("tools[0].server_url", [tool("official", server_url="http://169.254.169.254/")]),
        ("tools[0].headers", [tool("official", headers={"a": "b"})]),
        ("tools[0].authorization", [tool("official", authorization="x")]),
        ("tools[0].connector_id", [tool("official", connector_id="connector_gmail")]),
        ("tools[0].allowed_tools", [tool("one", allowed_tools=["weather"])]),
        ("tools[0].parameters", [tool("official", parameters={})]),
        ("tools[0].server_label", [{**FUNCTION, "server_label": "official"}]),
        ("tools", [tool("official"), tool("official")]),
    ],
)  # fmt: skip
def test_what_may_not_be_named_is_refused_at_its_place(server: Server, param: str, tools: Any) -> None:
    with server.http() as http:
        refused = http.post("/v1/responses", json={"input": "plain", "tools": tools})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


def test_an_approval_of_nothing_is_refused(server: Server) -> None:
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    with server.http() as http:
        refused = http.post("/v1/responses", json={"input": [answer], "tools": [tool("faulty")]})
    assert refused.json()["error"]["param"] == "input[0].approval_request_id"


def test_input_tokens_count_the_tools(server: Server) -> None:
    with server.openai() as client:
        made = client.responses.create(model="scripted", input="plain", tools=[tool("faulty")])
        counted = client.responses.input_tokens.count(model="scripted", input="plain", tools=[tool("faulty")])
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


def test_a_client_that_goes_away_ends_the_call(server: Server) -> None:
    body = {"input": "call", "tools": [tool("hangs")], "stream": True}
    with server.http() as http, http.stream("POST", "/v1/responses", json=body) as answer:
        for line in answer.iter_lines():
            if "mcp_call_arguments.done" in line:
                break
    wait_until(lambda: "outcome=cancelled" in server.log.read_text(), "the call goes on")
