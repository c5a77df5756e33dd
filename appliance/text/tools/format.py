"""What a tool format is, and the parser that runs it. This is the seam for formats of your own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.text.parsing.reader import Reader, Reading
from appliance.text.parsing.script import ScriptParser
from appliance.text.tools.spelling import Spelling
from appliance.text.tools.writer import CallWriter

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a parser may know of a request: the parameters' JSON schema of each tool by name.

    may_call: false when the request forbids calls; only formats that are parsed all the same need to look.
    """

    schemas: Mapping[str, Schema]
    may_call: bool = True


Script = Callable[[Reader, CallWriter, ToolContext], Reading[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How one family of models writes tool calls.

    script: reads to the end of the text and writes what it finds; see CallWriter for the rules.
    special_tokens: those that mark calls. They reach the parser although special tokens are not shown.
    short_ids: ids of calls have nine letters and digits, as Mistral's templates demand.
    reads_reasoning: the script reads the reasoning as well, so it is run for every answer.
    spellings: the ways in which a grammar may let a model write calls. Without one, tools that the model may call
    cannot be combined with structured output.
    """

    name: str
    script: Script
    special_tokens: Sequence[str] = ()
    short_ids: bool = False
    reads_reasoning: bool = False
    spellings: Sequence[Spelling] = ()

    def new_parser(self, context: ToolContext) -> ScriptParser:
        """For one sequence."""
        reader = Reader()
        writer = CallWriter(reader)
        return ScriptParser(reader, writer, self.script(reader, writer, context))
