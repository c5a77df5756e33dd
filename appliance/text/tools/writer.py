"""The output of a format's script, and the rule for malformed calls.

The rule. A call starts once its name is known and its arguments have begun. If it is malformed before that, its text is
content from the first marker on. After that, arguments are passed on as they come; if they stop being JSON, the call
ends, marked incomplete, and the rest is content. So no text is lost and no event is withdrawn. The markers around calls
are layout and not shown; neither is white space next to calls, except between two pieces of content.
"""

from appliance.text.parsing.events import ArgumentsDelta, CallDone, CallStarted, ContentDelta, Event, ReasoningDelta
from appliance.text.parsing.json_text import Malformed, Truncated
from appliance.text.parsing.reader import Markers, Reader, Reading

_WHITE = " \t\r\n"


class CallWriter:
    """Collects the events of one sequence."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._events: list[Event] = []
        self._space: list[str] = []  # white space after or before content: shown when more content follows
        self._has_content = False
        self._num_calls = 0
        self._is_open = False  # a call has started and is not done
        self._is_after_call = False

    @property
    def is_after_call(self) -> bool:
        """Only white space has come since a call."""
        return self._is_after_call

    def content(self, text: str) -> None:
        if self._is_after_call and not self._has_content:
            text = text.lstrip(_WHITE)
        shown = text.rstrip(_WHITE)
        if shown:
            self._is_after_call, self._has_content = False, True
            self._events.append(ContentDelta("".join(self._space) + shown))
            self._space.clear()
        if len(shown) < len(text):
            self._space.append(text[len(shown) :])

    def reasoning(self, text: str) -> None:
        """Adds reasoning, for formats that mark reasoning as well as calls."""
        if text:
            self._events.append(ReasoningDelta(text))

    def start(self, name: str, id: str | None = None) -> None:
        """Starts a call; its text can no longer become content."""
        self._reader.take_record()
        if not self._has_content:
            self._space.clear()
        self._events.append(CallStarted(self._num_calls, name, id))
        self._is_open = True

    def arguments(self, text: str) -> None:
        """Adds JSON text to the open call's arguments."""
        if text:
            self._events.append(ArgumentsDelta(self._num_calls, text))

    def done(self) -> None:
        """Ends the open call, whose arguments are complete."""
        self._end_call(is_complete=True)
        self.settle()

    def settle(self) -> None:
        """Counts the text so far to the finished call, so that malformed text from here on is content."""
        self._reader.record()

    def whole(self, name: str, arguments: str, id: str | None = None) -> None:
        """Adds a whole call."""
        self.start(name, id)
        self.arguments(arguments)
        self.done()

    def content_until(self, markers: Markers) -> Reading[str]:
        """Passes content on up to a marker, and returns the marker; "" at the end of the text."""
        return (yield from self._reader.until(markers, self.content))

    def attempt(self, body: Reading[None], opening: str = "") -> Reading[None]:
        """Reads calls by `body`, which raises Malformed if the text is not a call. opening: the marker before them."""
        self._reader.record(opening)
        try:
            yield from body
        except Malformed as problem:
            if self._is_open:
                if isinstance(problem, Truncated):
                    self.arguments(problem.rest)
                self._end_call(is_complete=False)
                self.content("" if isinstance(problem, Truncated) else problem.rest)
            else:
                self.content(self._reader.take_record())
        else:
            self._reader.take_record()

    def finish(self) -> None:
        """Ends the text; white space at the end of content is content."""
        if self._space and not self._is_after_call:
            self._events.append(ContentDelta("".join(self._space)))
            self._space.clear()

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _end_call(self, *, is_complete: bool) -> None:
        self._events.append(CallDone(self._num_calls, is_complete))
        self._num_calls += 1
        self._is_open = False
        self._is_after_call = True
