"""Parses formats without markers, where only its shape shows a call: it may be at the beginning of any line.

The name must be one of the request's tools, so that an answer which happens to hold such text stays an answer.
"""

from collections.abc import Callable, Collection

from appliance.text.parsing.reader import SPACE, Markers, Reader, Reading
from appliance.text.tools.format import Script, ToolContext
from appliance.text.tools.writer import CallWriter

Body = Callable[[Reader, CallWriter, Collection[str] | None], Reading[None]]

_LINE = "\n"
_SEPARATORS = (";", ",")


def bare_calls(body: Body, opening: str, *, starts: tuple[str, ...] = (), ends: tuple[str, ...] = ()) -> Script:
    """Makes a script. body: reads calls that begin with `opening`, of the given names, or of any name for None.

    starts: markers after which a call of any name may come, anywhere; `ends` may follow calls. Calls may be separated
    by a semicolon or a comma.
    """
    markers = Markers(_LINE, *starts, *ends)

    def script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
        marker = _LINE
        while True:
            if marker in starts:
                yield from writer.attempt(body(reader, writer, None), marker)
            elif marker == _LINE:
                yield from reader.run(SPACE, writer.content)
                if (yield from reader.peek()) == opening:
                    yield from writer.attempt(body(reader, writer, context.schemas))
            elif not writer.is_after_call:
                writer.content(marker)
            while writer.is_after_call and (yield from _another(reader, writer, opening)):
                yield from writer.attempt(body(reader, writer, context.schemas))
            marker = yield from writer.content_until(markers)
            if not marker:
                return
            if marker == _LINE:
                writer.content(marker)

    return script


def _another(reader: Reader, writer: CallWriter, opening: str) -> Reading[bool]:
    """Returns whether another call may follow the last one; a separator before anything else is content."""
    char = yield from reader.skip_space()
    if char in _SEPARATORS:
        reader.take()
        space = yield from reader.joined_run(SPACE)
        following = yield from reader.peek()
        if following != opening:
            writer.content(char + space)
        char = following
    return bool(char) and char == opening
