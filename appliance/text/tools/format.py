"""The record of a tool format, and the parser that runs it. User-defined formats are written with it too."""

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
    """The part of a request that a parser may use: the JSON schema of each tool's parameters, by tool name.

    may_call: false when the request forbids calls; it matters only to formats that are parsed even then.
    """

    schemas: Mapping[str, Schema]
    may_call: bool = True


Script = Callable[[Reader, CallWriter, ToolContext], Reading[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The way in which one family of models writes tool calls.

    script: reads to the end of the text and writes calls and content; see CallWriter for the rules.
    special_tokens: those that mark calls. The parser gets them although special tokens are not shown.
    short_ids: ids of calls have nine letters and digits, as Mistral's templates require.
    reads_reasoning: the script reads the reasoning as well, so it is run for every answer.
    spellings: the ways in which a grammar may let a model write calls. Without one, optional tool calls cannot be
    combined with structured output.
    """

    name: str
    script: Script
    special_tokens: Sequence[str] = ()
    short_ids: bool = False
    reads_reasoning: bool = False
    spellings: Sequence[Spelling] = ()

    def new_parser(self, context: ToolContext) -> ScriptParser:
        """Makes the parser of one sequence."""
        reader = Reader()
        writer = CallWriter(reader)
        return ScriptParser(reader, writer, self.script(reader, writer, context))
