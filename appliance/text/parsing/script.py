"""Runs a generator over text that comes in pieces."""

from typing import Protocol

from appliance.text.parsing.events import Event
from appliance.text.parsing.reader import Reader, Reading


class Writer(Protocol):
    """Collects the results of a generator."""

    def content(self, text: str) -> None:
        """Adds content."""

    def finish(self) -> None:
        """Ends the text and releases what was held back."""

    def take_events(self) -> list[Event]:
        """Returns the events since the last call."""


class ScriptParser:
    """The OutputParser of one sequence. Text after the generator's end is content."""

    def __init__(self, reader: Reader, writer: Writer, reading: Reading[None]) -> None:
        self.reader = reader
        self._writer = writer
        self._reading = reading
        self._has_ended = False
        self._advance()

    def feed(self, text: str) -> list[Event]:
        if self._has_ended:
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
            self._writer.content(self.reader.take_rest())
