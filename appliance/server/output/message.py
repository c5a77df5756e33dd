"""The output of one sequence as parts of a message: content, reasoning, tool calls. Every dialect writes from these."""

from collections.abc import Callable
from dataclasses import dataclass

from appliance.service.requests import TextOutput
from appliance.text.parsing.events import ArgumentsDelta, CallStarted, ContentDelta, Event, OutputParser, ReasoningDelta


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of one tool call: `id` and `name` once, in its first part; `arguments` are pieces of JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """Parts that an output adds to a message, in this order: reasoning, content, tool calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


@dataclass(frozen=True, slots=True)
class ShownParts:
    """one_call: calls after the first are left out."""

    reasoning: bool = True
    one_call: bool = False


@dataclass(slots=True)
class _Call:
    """The new part of one call."""

    index: int
    arguments: list[str]
    id: str | None = None
    name: str | None = None


class MessageReader:
    """Reads one sequence, output by output, however its text is cut."""

    def __init__(
        self,
        parser: OutputParser | None = None,
        shown: ShownParts = ShownParts(),
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """Without a parser all text is content. new_id: of a call to which the model gave none."""
        self._parser = parser
        self._shown = shown
        self._new_id = new_id
        self._has_calls = False

    def push(self, output: TextOutput) -> MessageDelta:
        """Returns the new parts. With the last output nothing is held back, and its finish reason is the message's."""
        if self._parser is None:
            return MessageDelta(output.text)
        events = self._parser.feed(output.text)
        if output.finish_reason is not None:
            events += self._parser.finish()
        delta = self._delta(events)
        if self._has_calls and output.finish_reason == "stop":
            output.finish_reason = "tool_calls"
        return delta

    def _delta(self, events: list[Event]) -> MessageDelta:
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, _Call] = {}
        for event in events:
            if isinstance(event, ContentDelta):
                content.append(event.text)
            elif isinstance(event, ReasoningDelta):
                reasoning.append(event.text)
            elif isinstance(event, CallStarted | ArgumentsDelta) and not (self._shown.one_call and event.index):
                call = calls.setdefault(event.index, _Call(event.index, []))
                if isinstance(event, ArgumentsDelta):
                    call.arguments.append(event.text)
                else:
                    self._has_calls = True
                    call.name, call.id = event.name, event.id or (self._new_id() if self._new_id else None)
        parts = tuple(ToolCallDelta(call.index, call.id, call.name, "".join(call.arguments)) for call in calls.values())
        return MessageDelta("".join(content), "".join(reasoning) if self._shown.reasoning else "", parts)
