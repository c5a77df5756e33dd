"""The record of a reasoning format, and the parser that runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.text.parsing.reader import Reader, Reading
from appliance.text.parsing.script import ScriptParser
from appliance.text.reasoning.writer import ReasoningWriter
from appliance.text.tools.format import ToolFormat

# Reads to the end of the text; the bool says whether the text begins inside the reasoning.
Script = Callable[[Reader, ReasoningWriter, bool], Reading[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The markers around the reasoning of one family of models.

    script: None if `tool_format` reads the reasoning too.
    start, end: the usual markers. A prompt that ends with one of them shows where the answer begins.
    begins_open: an answer begins inside the reasoning if the prompt does not show it.
    special_tokens: markers that are special tokens. The parser gets them although special tokens are not shown.
    """

    name: str
    script: Script | None
    start: str
    end: str
    begins_open: bool = False
    special_tokens: Sequence[str] = ()
    tool_format: ToolFormat | None = None

    def is_open_after(self, prompt: str) -> bool | None:
        """Returns whether an answer to this prompt begins inside the reasoning; None if the prompt does not show it."""
        tail = prompt[-_TAIL:].rstrip()
        if self.start and tail.endswith(self.start):
            return True
        return False if self.end and tail.endswith(self.end) else None

    def is_open_in(self, continued: str) -> bool:
        """Returns whether the text of a continued message has begun its reasoning and not ended it."""
        return continued.rfind(self.start) > continued.rfind(self.end)

    def new_parser(self, is_open: bool | None) -> ScriptParser:
        """Makes the parser of one sequence; is_open None: not known, `begins_open` decides."""
        assert self.script is not None
        reader, writer = Reader(), ReasoningWriter()
        begins_open = self.begins_open if is_open is None else is_open
        return ScriptParser(reader, writer, self.script(reader, writer, begins_open))


_TAIL = 256  # characters of a prompt that can hold a marker and the white space after it
