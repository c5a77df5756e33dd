"""Where a reasoning format's script writes. White space beside the frame is layout and not shown."""

from appliance.text.parsing.events import ContentDelta, Event, ReasoningDelta

_WHITE = " \t\r\n"


class ReasoningWriter:
    """Collects the events of one sequence."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._space: list[str] = []  # at the end of what came so far: shown when more of it follows
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
        """Content that has a frame of its own."""
        if self._is_behind:
            text = text.lstrip(_WHITE)
        shown = text.rstrip(_WHITE)
        if shown:
            self.content("".join(self._space) + shown)
            self._space.clear()
        if len(shown) < len(text):
            self._space.append(text[len(shown) :])

    def end_part(self) -> None:
        """Reasoning ends, or the frame of the content: white space on both sides of this place is layout."""
        self._space.clear()
        self._is_behind = True

    def finish(self) -> None:
        """White space at the very end of reasoning was layout."""
        self._space.clear()

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events
