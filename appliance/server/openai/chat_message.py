"""A message in OpenAI's chat form, whole or as deltas."""

from dataclasses import dataclass, field
from typing import Any

from appliance.server.output.message import MessageDelta, ToolCallDelta


def delta_fields(delta: MessageDelta) -> dict[str, Any]:
    """The value of `delta` in a chunk. Reasoning has both of its names."""
    fields: dict[str, Any] = {}
    if delta.reasoning:
        fields |= {"reasoning_content": delta.reasoning, "reasoning": delta.reasoning}
    if delta.content:
        fields["content"] = delta.content
    if delta.tool_calls:
        fields["tool_calls"] = [_call_fields(call) for call in delta.tool_calls]
    return fields


def _call_fields(call: ToolCallDelta) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


@dataclass(slots=True)
class WholeMessage:
    """Sums up deltas. has_reasoning: the message has the field `reasoning`, which may be null."""

    role: str
    has_reasoning: bool
    content: list[str]
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)

    def add(self, delta: MessageDelta) -> None:
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            self.calls.setdefault(call.index, []).append(call)

    def fields(self) -> dict[str, Any]:
        content, reasoning = "".join(self.content), "".join(self.reasoning)
        message: dict[str, Any] = {"role": self.role, "content": content if content or not self.calls else None}
        if self.has_reasoning:
            message |= {"reasoning_content": reasoning or None, "reasoning": reasoning or None}
        if self.calls:
            message["tool_calls"] = [_whole_call(parts) for parts in self.calls.values()]
        return message


def _whole_call(parts: list[ToolCallDelta]) -> dict[str, Any]:
    function = {"name": parts[0].name, "arguments": "".join(part.arguments for part in parts)}
    return {"id": parts[0].id, "type": "function", "function": function}
