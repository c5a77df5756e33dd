"""Reasoning between a start and an end marker, at the beginning of an answer: most formats are of this kind."""

import re

from appliance.text.parsing.reader import SPACE, Markers, Reader, Reading
from appliance.text.reasoning.format import Script
from appliance.text.reasoning.writer import ReasoningWriter

_ANYTHING = re.compile(r"(?s:.*)")


def framed(starts: tuple[str, ...], ends: tuple[str, ...], *, answer: tuple[str, ...] = ()) -> Script:
    """Makes a script; white space may come before the start. answer: markers around the content; they are not shown."""
    ends_of_reasoning = Markers(*ends)
    frame = Markers(*answer) if answer else None

    def script(reader: Reader, writer: ReasoningWriter, is_open: bool) -> Reading[None]:
        reader.record()
        has_start = yield from _begins_with(reader, starts)
        before = reader.take_record()
        if has_start or is_open:
            if not has_start:
                writer.reasoning(before)
            found = yield from reader.until(ends_of_reasoning, writer.reasoning)
            if not found:
                return
            writer.end_part()
        else:
            writer.content(before)
        if frame is None:
            yield from reader.run(_ANYTHING, writer.content)
        else:
            while (yield from reader.until(frame, writer.framed_content)):
                writer.end_part()

    return script


def _begins_with(reader: Reader, texts: tuple[str, ...]) -> Reading[bool]:
    """Consumes white space and then one of `texts`, as far as the text matches. Returns whether one matched whole."""
    yield from reader.joined_run(SPACE)
    possible, length = texts, 0
    while possible:
        if any(len(text) == length for text in possible):
            return True
        char = yield from reader.peek()
        possible = tuple(text for text in possible if text[length] == char)
        if possible:
            reader.take()
            length += 1
    return False
