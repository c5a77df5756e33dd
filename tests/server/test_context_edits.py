"""Edits of the context in Anthropic's words: what they clear, when, and how the answer tells it."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from appliance.server.anthropic.context import CLEARED
from tests.server.harness import Server, encode

USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
RESULTS = ["first " * 10, "second " * 10, "third " * 10]


@pytest.fixture
def messages(server: Server) -> Iterator[Any]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=server.url, api_key="none", **options) as client:
        yield client.beta.messages


def conversation(*, thinks: bool = False) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = [{"role": "user", "content": "start"}]
    for place, result in enumerate(RESULTS):
        thought = [{"type": "thinking", "thinking": "Hm.", "signature": ""}] if thinks else []
        call = {"type": "tool_use", "id": f"c{place}", "name": "read" if place else "write", "input": {"a": place}}
        answer = {"type": "tool_result", "tool_use_id": f"c{place}", "content": result}
        given += [{"role": "assistant", "content": [*thought, call]}, {"role": "user", "content": [answer]}]
    return [*given, {"role": "assistant", "content": "done"}, {"role": "user", "content": "greet"}]


def counted(messages: Any, given: list[dict[str, Any]], *edits: dict[str, Any]) -> tuple[int, int]:
    """Tokens with the edits, and without them."""
    told = messages.count_tokens(model="scripted", messages=given, context_management={"edits": list(edits)})
    return told.input_tokens, told.context_management.original_input_tokens


def saved(*places: int) -> int:
    return sum(len(encode(RESULTS[place])) - len(encode(CLEARED)) for place in places)


def use_edit(num_tokens: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": USES, "trigger": {"type": "input_tokens", "value": num_tokens}, **fields}


def test_old_results_are_cleared(messages: Any) -> None:
    keep = {"type": "tool_uses", "value": 1}
    given = conversation()
    plain = messages.count_tokens(model="scripted", messages=given).input_tokens
    assert counted(messages, given, use_edit(keep=keep)) == (plain - saved(0, 1), plain)
    assert counted(messages, given, use_edit(keep=keep, exclude_tools=["write"])) == (plain - saved(1), plain)
    assert counted(messages, given, use_edit()) == (plain, plain)  # three are kept unless it says otherwise
    assert counted(messages, given, use_edit(plain, keep=keep)) == (plain, plain)
    assert counted(messages, given, use_edit(plain - 1, keep=keep)) == (plain - saved(0, 1), plain)
    assert counted(messages, given, {"type": USES, "keep": keep}) == (plain, plain)  # from 100,000 tokens on
    many = {"type": "tool_uses", "value": 3}
    assert counted(messages, given, {"type": USES, "keep": keep, "trigger": many}) == (plain, plain)
    assert counted(messages, given, {"type": USES, "keep": keep, "trigger": {**many, "value": 2}})[0] < plain


@pytest.mark.parametrize("missing", [0, 1])
def test_too_little_is_left_alone(messages: Any, missing: int) -> None:
    keep, least = {"type": "tool_uses", "value": 1}, {"type": "input_tokens", "value": saved(0, 1) + missing}
    with_edit, plain = counted(messages, conversation(), use_edit(keep=keep, clear_at_least=least))
    assert with_edit == plain - (0 if missing else saved(0, 1))


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_tells_what_was_cleared(messages: Any, stream: bool) -> None:
    edits = [{"type": THINKING, "keep": "all"}, use_edit(keep={"type": "tool_uses", "value": 0})]
    options: dict[str, Any] = {"model": "scripted", "max_tokens": 5, "messages": conversation()}
    options["context_management"] = {"edits": edits}
    if stream:
        with messages.stream(**options) as events:
            told = [event for event in events if event.type == "message_delta"][-1].context_management
    else:
        told = messages.create(**options).context_management
    (applied,) = told.applied_edits
    assert (applied.type, applied.cleared_tool_uses, applied.cleared_input_tokens) == (USES, 3, saved(0, 1, 2))


def test_thinking_of_old_turns_is_cleared(messages: Any) -> None:
    """The template shows no thinking, so nothing is saved; what was cleared is told."""
    first = conversation(thinks=True)
    second = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "x"}],
    }
    given = [*first, second, {"role": "user", "content": "greet"}]
    for edit, num_cleared in [
        ({"type": THINKING}, 1),
        ({"type": THINKING, "keep": {"type": "thinking_turns", "value": 2}}, 0),
        ({"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}, 2),
        ({"type": THINKING, "keep": {"type": "all"}}, 0),
    ]:
        answer = messages.create(
            model="scripted", max_tokens=5, messages=given, context_management={"edits": [edit]}
        ).context_management.applied_edits
        assert [each.cleared_thinking_turns for each in answer] == ([num_cleared] if num_cleared else [])


@pytest.mark.parametrize(
    ("place", "edit"),
    [
        ("type", {"type": "compact_20260112"}),
        ("keep", {"type": USES, "keep": "all"}),
        ("keep.value", {"type": USES, "keep": {"type": "tool_uses"}}),
        ("keep.value", {"type": THINKING, "keep": {"type": "thinking_turns", "value": -1}}),
        ("trigger", {"type": USES, "trigger": {"type": "thinking_turns", "value": 1}}),
        ("trigger", {"type": THINKING, "trigger": {"type": "tool_uses", "value": 1}}),
        ("exclude_tools", {"type": THINKING, "exclude_tools": ["x"]}),
    ],
)  # fmt: skip
def test_wrong_edits_are_named(messages: Any, place: str, edit: dict[str, Any]) -> None:
    where = "edits[0]" if place == "type" else f"edits[0].{place}"
    with pytest.raises(anthropic.BadRequestError) as refused:
        counted(messages, conversation(), edit)
    assert f"context_management.{where}" in refused.value.message
