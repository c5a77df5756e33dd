"""Parses calls that a request requires. A grammar makes the model write plain JSON instead of its own format: only the
arguments for a named tool, a list of calls for `required`.
"""

from appliance.text.parsing.json_text import Malformed, json_value
from appliance.text.parsing.reader import Reader, Reading
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.json_calls import call_array
from appliance.text.tools.writer import CallWriter


def named_call(name: str) -> ToolFormat:
    """Makes the format of a text that is only the arguments of one call of `name`."""

    def arguments(reader: Reader, writer: CallWriter) -> Reading[None]:
        if (yield from reader.skip_space()) != "{":
            raise Malformed
        writer.start(name)
        yield from json_value(reader, writer.arguments)
        writer.done()

    def script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
        yield from writer.attempt(arguments(reader, writer))

    return ToolFormat(name="named", script=script)


def _required(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    yield from writer.attempt(call_array(reader, writer))


REQUIRED_CALLS = ToolFormat(name="required", script=_required)
