"""A model's whole output format: reasoning first, then tool calls in the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from appliance.base.plugins import PluginError, load_plugin
from appliance.text.parsing.bounded import BoundedFormats, BoundedParser, bounded_formats
from appliance.text.parsing.events import ArgumentsDelta, CallDone, CallStarted, ContentDelta, Event, OutputParser
from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.spelling import CallsOrText

T = TypeVar("T")
_FIELDS: Final[dict[type, str]] = {
    ToolFormat: "decoding.tool_parser_plugin",
    ReasoningFormat: "decoding.reasoning_parser_plugin",
}


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The formats of a model's output. A reasoning format without a script is read by the tool format of its name.

    reads_all: that tool format, which is used whether or not a request has tools.
    plugins: the formats that are the operator's own, whose calls take a bounded time.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    reads_all: ToolFormat | None = None
    plugins: BoundedFormats | None = None

    def special_tokens(self, *, uses_tools: bool) -> frozenset[str]:
        """Returns the special tokens that a request's parsers need to see."""
        formats = (self.tools if uses_tools else None, self.reasoning, self.reads_all)
        return frozenset(token for form in formats if form is not None for token in form.special_tokens)

    def end_of_reasoning(self, is_open: bool | None, *, thinks: bool) -> str | None:
        """Returns the text after which the answer itself begins; None when no reasoning comes before it.

        is_open: see begins_open. thinks: whether the model reasons when that is None.
        """
        form = self.reasoning
        if form is None or form.script is None:
            return None
        return form.end if is_open or (is_open is None and (thinks or form.begins_open)) else None

    def begins_open(self, prompt: str, continued: str = "") -> bool | None:
        """Returns whether an answer begins inside the reasoning; None if neither text shows it.

        continued: the text of the message that the answer continues; empty for a new message.
        """
        form = self.reasoning
        if form is None or form.script is None:
            return None
        return form.is_open_in(continued) if continued else form.is_open_after(prompt)

    def new_parser(
        self,
        is_open: bool | None,
        context: ToolContext,
        forced: ToolFormat | None = None,
        starts: Sequence[str] = (),
    ) -> OutputParser | None:
        """Makes the parser of one sequence; None when there is nothing to parse.

        is_open: see begins_open. forced: the format that a grammar enforces. starts: see CallsOrText; empty if calls
        may be anywhere.
        """
        if self.reads_all is not None:
            stages: list[OutputParser] = [self.reads_all.new_parser(context)]
        elif self.reasoning is not None:
            stages = [self.reasoning.new_parser(is_open)]
        else:
            stages = []
        if forced is not None:
            stages.append(forced.new_parser(context))
        elif self.tools is not None and context.may_call and self.reads_all is None:
            calls = self.tools.new_parser(context)
            stages.append(CallsOrText(starts, calls) if starts else calls)
        parser = _Chain(*stages) if len(stages) == 2 else stages[0] if stages else None
        return parser if parser is None or self.plugins is None else BoundedParser(parser, self.plugins)


def load_output_format(tools: str | None, reasoning: str | None) -> ModelOutput:
    """Loads formats by import path, "module:NAME" or "module.NAME". Raises PluginError if one does not exist."""
    tool_format = load_format(tools, ToolFormat) if tools else None
    reasoning_format = load_format(reasoning, ReasoningFormat) if reasoning else None
    return replace(_combined(tool_format, reasoning_format), plugins=bounded_formats(tools, reasoning))


def _combined(tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None) -> ModelOutput:
    if reasoning_format is not None and reasoning_format.script is None:
        assert reasoning_format.tool_format is not None
        return ModelOutput(tool_format, reasoning_format, reasoning_format.tool_format)
    if tool_format is not None and tool_format.reads_reasoning:
        return ModelOutput(tool_format, None, tool_format)
    return ModelOutput(tool_format, reasoning_format)


def load_format(path: str, kind: type[T]) -> T:
    found = load_plugin(path, _FIELDS[kind])
    if not isinstance(found, kind):
        raise PluginError(f"{_FIELDS[kind]}: {path} is no {kind.__name__}", hint="see docs/guides/plugins.md")
    return found


class _Chain:
    """Chains two parsers: the second reads the content of the first. Calls of both are numbered in one sequence."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second
        self._num_first_calls = 0

    def feed(self, text: str) -> list[Event]:
        return self._passed_on(self._first.feed(text))

    def finish(self) -> list[Event]:
        return self._passed_on(self._first.finish()) + self._numbered(self._second.finish())

    def _passed_on(self, events: list[Event]) -> list[Event]:
        passed: list[Event] = []
        for event in events:
            if isinstance(event, ContentDelta):
                passed += self._numbered(self._second.feed(event.text))
            else:
                self._num_first_calls += isinstance(event, CallStarted)
                passed.append(event)
        return passed

    def _numbered(self, events: list[Event]) -> list[Event]:
        if not self._num_first_calls:
            return events
        shift = self._num_first_calls
        return [
            replace(event, index=event.index + shift)
            if isinstance(event, CallStarted | ArgumentsDelta | CallDone)
            else event
            for event in events
        ]
