"""Edits of earlier messages that a request asks for in `context_management`: old results of tools, old thinking.

They are made before the prompt is rendered, in the order in which they are listed. The defaults are Anthropic's.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.requests.errors import invalid
from appliance.server.anthropic.fields import ContentBlock, ContextEdit, EditAmount, InputMessage, PromptFields
from appliance.server.anthropic.kinds import CLEAR_THINKING, CLEAR_TOOL_USES, EDITS

CLEARED = "[the result of this tool was cleared to save context]"
_TRIGGER_TOKENS, _KEPT_USES, _KEPT_TURNS = 100_000, 3, 1
_THINKING = ("thinking", "redacted_thinking")
# Edit -> its counts, and what each may count.
_COUNTS: dict[str, dict[str, tuple[str, ...]]] = {
    CLEAR_TOOL_USES: {
        "trigger": ("input_tokens", "tool_uses"),
        "keep": ("tool_uses",),
        "clear_at_least": ("input_tokens",),
    },
    CLEAR_THINKING: {"keep": ("thinking_turns", "all")},
}

CountTokens = Callable[[PromptFields], Awaitable[int]]
Blocks = Callable[[ContentBlock], ContentBlock | None]  # None leaves a block out


@dataclass(frozen=True, slots=True)
class EditedPrompt:
    """fields: with the edited messages. applied: the edits that cleared something, in the form of the answer."""

    fields: PromptFields
    applied: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Clearing:
    """One edit would clear a number of uses or turns, and leave these messages."""

    num_cleared: int
    messages: list[InputMessage]


async def edited(fields: PromptFields, count_tokens: CountTokens) -> EditedPrompt:
    """Applies the edits that `fields` asks for. Tokens are counted only where an edit may clear something.

    Raises ApiError 400 naming the edit that is wrong or not served.
    """
    edits = (fields.context_management.edits or []) if fields.context_management is not None else []
    for place, edit in enumerate(edits):
        _check(edit, f"context_management.edits[{place}]")
    applied: list[dict[str, Any]] = []
    for edit in edits:
        is_thinking = edit.type == CLEAR_THINKING
        clearing = _clear_thinking(fields, edit) if is_thinking else _clear_uses(fields, edit)
        if clearing.num_cleared == 0 or not _is_triggered(edit, fields, before := await count_tokens(fields)):
            continue
        left = msgspec.structs.replace(fields, messages=clearing.messages)
        num_tokens = max(0, before - await count_tokens(left))
        if edit.clear_at_least is not None and num_tokens < (edit.clear_at_least.value or 0):
            continue
        fields = left
        what = "cleared_thinking_turns" if is_thinking else "cleared_tool_uses"
        applied.append({"type": edit.type, what: clearing.num_cleared, "cleared_input_tokens": num_tokens})
    return EditedPrompt(fields, applied)


def _check(edit: ContextEdit, where: str) -> None:
    EDITS.check(edit.type, where)
    counts = _COUNTS[edit.type]
    for name in ("trigger", "keep", "clear_at_least"):
        count: EditAmount | str | None = getattr(edit, name)
        if count is None or (count == "all" and "all" in counts.get(name, ())):
            continue
        kinds = counts.get(name, ())
        if not isinstance(count, EditAmount) or count.type not in kinds:
            allowed = f"of type {' or '.join(kinds)}" if kinds else "absent"
            raise invalid(f"{where}.{name}", f"{where}.{name} must be {allowed} in {edit.type}", "invalid_value")
        if count.type != "all" and (count.value is None or count.value < 0):
            message = f"{where}.{name}.value is {count.value}; it must be at least 0"
            raise invalid(f"{where}.{name}.value", message, "invalid_value")
    if edit.type == CLEAR_THINKING and (edit.exclude_tools or edit.clear_tool_inputs):
        name = "exclude_tools" if edit.exclude_tools else "clear_tool_inputs"
        raise invalid(f"{where}.{name}", f"{where}.{name} must be absent in {edit.type}", "invalid_value")


def _is_triggered(edit: ContextEdit, fields: PromptFields, num_tokens: int) -> bool:
    if edit.type == CLEAR_THINKING:
        return True
    trigger = edit.trigger or EditAmount(type="input_tokens", value=_TRIGGER_TOKENS)
    reached = num_tokens if trigger.type == "input_tokens" else sum(1 for _ in _uses(fields))
    return reached > (trigger.value or 0)


def _uses(fields: PromptFields) -> Iterator[ContentBlock]:
    for message in fields.messages:
        if message.role == "assistant" and not isinstance(message.content, str):
            yield from (block for block in message.content if block.type == "tool_use")


def _clear_uses(fields: PromptFields, edit: ContextEdit) -> _Clearing:
    """Removes the results of all tool uses but the last ones, and their inputs too if the edit asks for that."""
    num_kept = edit.keep.value or 0 if isinstance(edit.keep, EditAmount) else _KEPT_USES
    uses = list(_uses(fields))
    names = {use.id: use.name for use in uses[: max(0, len(uses) - num_kept)]}
    names = {use_id: name for use_id, name in names.items() if name not in (edit.exclude_tools or ())}
    inputs = edit.clear_tool_inputs
    cleared: set[str] = set()

    def clear(block: ContentBlock) -> ContentBlock:
        if block.type == "tool_result" and block.tool_use_id is not None and block.tool_use_id in names:
            cleared.add(block.tool_use_id)
            return msgspec.structs.replace(block, content=CLEARED)
        if block.type == "tool_use" and block.id in names and (inputs is True or block.name in (inputs or ())):
            return msgspec.structs.replace(block, input={})
        return block

    messages = [_changed(message, clear) for message in fields.messages]
    return _Clearing(len(cleared), messages)


def _clear_thinking(fields: PromptFields, edit: ContextEdit) -> _Clearing:
    """Without the thinking of all but the last turns that have some."""
    if edit.keep == "all" or (isinstance(edit.keep, EditAmount) and edit.keep.type == "all"):
        return _Clearing(0, fields.messages)
    num_kept = edit.keep.value or 0 if isinstance(edit.keep, EditAmount) else _KEPT_TURNS
    turns = _turns(fields.messages)
    thinking = sorted({turn for turn, message in zip(turns, fields.messages, strict=True) if _has_thinking(message)})
    old = set(thinking[: max(0, len(thinking) - num_kept)])
    changed = [
        _changed(message, lambda block: None if block.type in _THINKING else block) if turn in old else message
        for turn, message in zip(turns, fields.messages, strict=True)
    ]
    return _Clearing(len(old), [message for message in changed if message.content])


def _turns(messages: list[InputMessage]) -> list[int]:
    """The number of the turn in which each message is: results of tools go on with a turn, other user text ends it."""
    turns, turn = [], 0
    for message in messages:
        content = message.content
        is_result = not isinstance(content, str) and all(block.type == "tool_result" for block in content)
        turn += message.role == "user" and not is_result
        turns.append(turn)
    return turns


def _has_thinking(message: InputMessage) -> bool:
    content = message.content
    is_text = message.role != "assistant" or isinstance(content, str)
    return not is_text and any(block.type in _THINKING for block in content if isinstance(block, ContentBlock))


def _changed(message: InputMessage, change: Blocks) -> InputMessage:
    if isinstance(message.content, str):
        return message
    blocks = [changed for block in message.content if (changed := change(block)) is not None]
    return msgspec.structs.replace(message, content=blocks)
