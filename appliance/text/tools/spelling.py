"""The spelling of calls as data: a grammar enforces it when a model may call or answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.text.parsing.events import ContentDelta, Event, OutputParser


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpelling:
    """A parameter: before + key + middle + value + end, with `separator` between two.

    has_text: a string value is written as it is, up to `end`, and any other value as JSON. If false, all are JSON.
    """

    before: str
    middle: str
    end: str = ""
    separator: str = ""
    has_text: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One way of writing calls that the parser of the format reads.

    It is opening + call + separator + call ... + closing, where a call is before + name + after + arguments + end.
    Arguments are a JSON object, or `parameters`. numbered: text after the name, which a number follows.
    """

    before: str
    after: str
    end: str = ""
    opening: str = ""
    separator: str = ""
    closing: str = ""
    numbered: str = ""
    parameters: ParameterSpelling | None = None

    def starts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the possible beginnings of a text that begins with a call of one of `names`."""
        return tuple(f"{self.opening}{self.before}{name}{self.numbered or self.after}" for name in names)


def json_spelling(
    opening: str = "",
    closing: str = "",
    *,
    before: str = "",
    end: str = "",
    separator: str = ", ",
    arguments: str = "arguments",
) -> Spelling:
    """Returns the spelling of calls as {"name": ..., "arguments": {...}}, each between `before` and `end`."""
    return Spelling(
        opening=opening,
        before=before + '{"name": "',
        after=f'", "{arguments}": ',
        end="}" + end,
        separator=separator,
        closing=closing,
    )


class CallsOrText:
    """Parses texts that a grammar made: only calls, or an answer without calls.

    The beginning of a text shows which of the two it is; an answer that contains text like a call stays an answer.
    """

    def __init__(self, starts: Sequence[str], calls: OutputParser) -> None:
        self._starts = starts
        self._calls = calls
        self._held = ""
        self._is_calls: bool | None = None

    def feed(self, text: str) -> list[Event]:
        if self._is_calls is None:
            text = self._held + text
            self._held = ""
            if text.startswith(tuple(self._starts)):
                self._is_calls = True
            elif any(start.startswith(text) for start in self._starts):
                self._held = text
                return []
            else:
                self._is_calls = False
        if self._is_calls:
            return self._calls.feed(text)
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        held = [ContentDelta(self._held)] if self._held else []
        return [*held, *self._calls.finish()]
