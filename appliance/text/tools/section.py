"""Parses calls that follow each other in a section, each after a marker; a marker outside a section is text."""

from collections.abc import Callable
from dataclasses import dataclass

from appliance.text.parsing.json_text import literal
from appliance.text.parsing.reader import Markers, Reader, Reading
from appliance.text.tools.format import Script, ToolContext
from appliance.text.tools.writer import CallWriter

ReadCall = Callable[[Reader, CallWriter], Reading[None]]


@dataclass(frozen=True, slots=True)
class ToolSection:
    """The markers of a section and of a call in it."""

    begin: str
    call_begin: str
    call_end: str
    end: str

    def script(self, read_call: ReadCall) -> Script:
        """Makes a script. `read_call` reads the text after call_begin, and raises Malformed if it is not a call."""
        markers = Markers(self.begin, self.call_begin, self.call_end, self.end)

        def first(reader: Reader, writer: CallWriter) -> Reading[None]:
            yield from reader.skip_space()
            yield from literal(reader, self.call_begin)
            yield from read_call(reader, writer)

        def script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
            while marker := (yield from writer.content_until(markers)):
                if marker == self.begin:
                    yield from writer.attempt(first(reader, writer), marker)
                elif marker == self.call_begin:
                    yield from writer.attempt(read_call(reader, writer), marker)
                elif not writer.is_after_call:
                    writer.content(marker)

        return script
