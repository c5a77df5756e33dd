"""What a tool format is, and the parser that runs it. This is the seam for formats of your own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.text.parsing.events import Event
from appliance.text.parsing.reader import Reader, Reading
from appliance.text.tools.writer import CallWriter

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a parser may know of a request: the parameters' JSON schema of each tool by name."""

    schemas: Mapping[str, Schema]


Script = Callable[[Reader, CallWriter, ToolContext], Reading[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How one family of models writes tool calls.

    script: reads to the end of the text and writes what it finds; see CallWriter for the rules.
    special_tokens: those that mark calls. They reach the parser although special tokens are not shown.
    short_ids: ids of calls have nine letters and digits, as Mistral's templates demand.
    """

    name: str
    script: Script
    special_tokens: Sequence[str] = ()
    short_ids: bool = False

    def new_parser(self, context: ToolContext) -> "ToolParser":
        """For one sequence."""
        return ToolParser(self.script, context)


class ToolParser:
    """Runs a script over text that comes in pieces (an OutputParser)."""

    def __init__(self, script: Script, context: ToolContext) -> None:
        self.reader = Reader()
        self._writer = CallWriter(self.reader)
        self._reading = script(self.reader, self._writer, context)
        self._has_ended = False
        self._advance()

    def feed(self, text: str) -> list[Event]:
        if self._has_ended:  # a script may end early: what follows is content
            self._writer.content(text)
        else:
            self.reader.push(text)
            self._advance()
        return self._writer.take_events()

    def finish(self) -> list[Event]:
        if not self._has_ended:
            self.reader.end()
            self._advance()
        self._writer.finish()
        return self._writer.take_events()

    def _advance(self) -> None:
        try:
            next(self._reading)
        except StopIteration:
            self._has_ended = True
