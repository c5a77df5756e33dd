"""Bounds the time of output formats that are the operator's own: the loop that serves every stream waits for them."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from appliance.base.bounded import BoundedCalls
from appliance.text.parsing.events import Event, OutputParser

TIMEOUT_S: Final = 2.0  # of one piece of text
_OURS: Final = "appliance."  # the formats of this package are linear in time


@dataclass(frozen=True, slots=True)
class BoundedFormats:
    """name: the dotted paths of the formats."""

    name: str
    calls: BoundedCalls


def bounded_formats(*paths: str | None) -> BoundedFormats | None:
    """Returns the bound of those formats that are not ours; None if all are."""
    own = [path for path in paths if path is not None and not path.startswith(_OURS)]
    return BoundedFormats(" and ".join(own), BoundedCalls(TIMEOUT_S)) if own else None


class BoundedParser:
    """Runs a parser within a time. Raises TookTooLongError, StoppedError, or what the parser raises."""

    def __init__(self, parser: OutputParser, formats: BoundedFormats) -> None:
        self._parser = parser
        self._formats = formats

    def feed(self, text: str) -> list[Event]:
        return self._formats.calls.run(self._formats.name, partial(self._parser.feed, text))

    def finish(self) -> list[Event]:
        return self._formats.calls.run(self._formats.name, self._parser.finish)
