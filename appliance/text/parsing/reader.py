"""A reader of text that comes in pieces. Its users are generators, which yield when they need more text.

A generator sees a sequence of characters and its end, never the cuts; so its results cannot depend on them. The work is
constant per character.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = re.compile(r"[ \t\r\n]*")


class Markers:
    """Texts to search for. No text may be part of another, so which comes first does not depend on the cuts."""

    def __init__(self, *texts: str) -> None:
        nested = [text for text in texts if any(text in other for other in texts if other is not text)]
        assert not nested, f"{nested} are parts of other markers"
        self.texts = texts
        self.longest = max(map(len, texts))
        self._pattern = re.compile("|".join(map(re.escape, texts)))
        self._prefixes = frozenset(text[:length] for text in texts for length in range(1, len(text)))
        self._first = re.compile("[" + "".join(re.escape(text[0]) for text in texts) + "]")

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def open_end(self, text: str) -> int:
        """Returns how many of the last characters may begin a marker."""
        tail = text[-(self.longest - 1) :] if self.longest > 1 else ""
        start = self._first.search(tail)
        while start is not None:
            if tail[start.start() :] in self._prefixes:
                return len(tail) - start.start()
            start = self._first.search(tail, start.start() + 1)
        return 0


class Reader:
    """A cursor in the text. Generators yield only when all text so far is consumed."""

    def __init__(self) -> None:
        self.num_characters = 0  # consumed characters, with repetitions: tests measure the work by it
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] | None = None
        self._record_from = 0

    def push(self, text: str) -> None:
        """Adds text. All earlier text must be consumed."""
        self._keep_record()
        self._text, self._at, self._record_from = text, 0, 0

    def end(self) -> None:
        self.push("")
        self._ended = True

    def take_rest(self) -> str:
        """Consumes and returns the text that has come but is not consumed."""
        rest = self._text[self._at :]
        self._go(len(self._text))
        return rest

    def record(self, first: str = "") -> None:
        """Starts to record consumed text; the record begins with `first`."""
        self._record, self._record_from = [first], self._at

    def take_record(self) -> str:
        """Ends the record and returns the text consumed since `record`."""
        self._keep_record()
        text = "".join(self._record or ())
        self._record = None
        return text

    def peek(self) -> Reading[str]:
        """Returns the next character without consuming it; "" at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> None:
        """Consumes the character that was peeked."""
        self._at += 1
        self.num_characters += 1

    def run(self, pattern: re.Pattern[str], sink: Sink) -> Reading[None]:
        """Consumes the longest run of a character class (a pattern like `[a-z]*`), piece by piece."""
        while (yield from self.peek()):
            match = pattern.match(self._text, self._at)
            end = match.end() if match else self._at
            if end > self._at:
                sink(self._text[self._at : end])
                self._go(end)
            if self._at < len(self._text):
                return

    def joined_run(self, pattern: re.Pattern[str]) -> Reading[str]:
        pieces: list[str] = []
        yield from self.run(pattern, pieces.append)
        return "".join(pieces)

    def skip_space(self) -> Reading[str]:
        """Consumes white space and returns the next character; "" at the end."""
        yield from self.run(SPACE, _ignore)
        return (yield from self.peek())

    def until(self, markers: Markers, sink: Sink) -> Reading[str]:
        """Passes the text before the first marker to `sink` as soon as it is certain; consumes and returns the marker.

        Returns "" when the text ends first.
        """
        tail = ""
        while True:
            found, tail = self._look(tail, markers, sink)
            if found or self._ended:
                sink(tail)
                return found
            yield

    def _look(self, tail: str, markers: Markers, sink: Sink) -> tuple[str, str]:
        """Does one piece of `until`: returns the marker; or "" and the last characters, which may begin a marker."""
        if tail:
            is_last = len(self._text) - self._at < markers.longest
            window = tail + self._text[self._at : self._at + markers.longest]
            if match := markers.search(window):
                sink(window[: match.start()])
                self._go(self._at + match.end() - len(tail))
                return match.group(), ""
            if is_last:
                return "", self._keep_open_end(window, markers, sink)
            sink(tail)
        if match := markers.search(self._text, self._at):
            sink(self._text[self._at : match.start()])
            self._go(match.end())
            return match.group(), ""
        return "", self._keep_open_end(self._text[self._at :], markers, sink)

    def _keep_open_end(self, text: str, markers: Markers, sink: Sink) -> str:
        """Consumes all text, with which `text` ends, and returns the last characters, which may begin a marker."""
        kept = len(text) - markers.open_end(text)
        sink(text[:kept])
        self._go(len(self._text))
        return text[kept:]

    def _go(self, place: int) -> None:
        self.num_characters += place - self._at
        self._at = place

    def _keep_record(self) -> None:
        if self._record is not None:
            self._record.append(self._text[self._record_from : self._at])
            self._record_from = self._at


def _ignore(_: str) -> None:
    """Drops the text."""
