"""What one sequence says as parts of a message: content, reasoning, tool calls. Every dialect writes from these."""

from dataclasses import dataclass

from appliance.service.requests import TextOutput


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of one tool call: `id` and `name` once, in its first part; `arguments` are pieces of JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What an output adds to a message, in this order: reasoning, content, tool calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class MessageReader:
    """Reads one sequence, output by output, however its text is cut."""

    def push(self, output: TextOutput) -> MessageDelta:
        """What is new. With the last output nothing is held back, and its finish reason is the message's."""
        return MessageDelta(output.text)
