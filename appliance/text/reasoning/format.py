"""What a reasoning format is, and the parser that runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.text.parsing.reader import Reader, Reading
from appliance.text.parsing.script import ScriptParser
from appliance.text.reasoning.writer import ReasoningWriter
from appliance.text.tools.format import ToolFormat

# Reads to the end of the text; `is_open` tells whether it begins inside the reasoning.
Script = Callable[[Reader, ReasoningWriter, bool], Reading[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How one family of models frames what it thinks before it answers.

    script: None where `tool_format` reads the reasoning too.
    start, end: the usual frame. A prompt that ends with one of them tells where the answer begins.
    begins_open: where an answer begins when the prompt does not tell.
    special_tokens: those of the frame. They reach the parser although special tokens are not shown.
    """

    name: str
    script: Script | None
    start: str
    end: str
    begins_open: bool = False
    special_tokens: Sequence[str] = ()
    tool_format: ToolFormat | None = None

    def is_open_after(self, prompt: str) -> bool | None:
        """Whether an answer to this prompt begins inside the reasoning; None when the prompt does not tell."""
        tail = prompt[-_TAIL:].rstrip()
        if self.start and tail.endswith(self.start):
            return True
        return False if self.end and tail.endswith(self.end) else None

    def is_open_in(self, continued: str) -> bool:
        """Whether the text of a message that goes on has begun its reasoning and not ended it."""
        return continued.rfind(self.start) > continued.rfind(self.end)

    def new_parser(self, is_open: bool | None) -> ScriptParser:
        """For one sequence; is_open None: nothing tells."""
        assert self.script is not None
        reader, writer = Reader(), ReasoningWriter()
        begins_open = self.begins_open if is_open is None else is_open
        return ScriptParser(reader, writer, self.script(reader, writer, begins_open))


_TAIL = 256  # characters of a prompt that can hold a marker and the white space after it
