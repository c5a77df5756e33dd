"""The output of a reasoning format's script. White space next to the markers is layout and not shown."""

from appliance.text.parsing.events import ContentDelta, Event, ReasoningDelta

_WHITE = " \t\r\n"


class ReasoningWriter:
    """Collects the events of one sequence."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._space: list[str] = []  # white space at the end so far: shown when more text follows
        self._has_reasoning = False
        self._is_behind = False  # reasoning has ended, and no content has come

    def reasoning(self, text: str) -> None:
        if not self._has_reasoning:
            text = text.lstrip(_WHITE)
        shown = text.rstrip(_WHITE)
        if shown:
            self._has_reasoning = True
            self._events.append(ReasoningDelta("".join(self._space) + shown))
            self._space.clear()
        if len(shown) < len(text):
            self._space.append(text[len(shown) :])

    def content(self, text: str) -> None:
        if self._is_behind:
            text = text.lstrip(_WHITE)
        if text:
            self._is_behind = False
            self._events.append(ContentDelta(text))

    def framed_content(self, text: str) -> None:
        """Adds content that has markers of its own."""
        if self._is_behind:
            text = text.lstrip(_WHITE)
        shown = text.rstrip(_WHITE)
        if shown:
            self.content("".join(self._space) + shown)
            self._space.clear()
        if len(shown) < len(text):
            self._space.append(text[len(shown) :])

    def end_part(self) -> None:
        """Ends the reasoning, or the content within its own markers; white space on both sides is layout."""
        self._space.clear()
        self._is_behind = True

    def finish(self) -> None:
        """Ends the text; white space at its end is layout."""
        self._space.clear()

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events
