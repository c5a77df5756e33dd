"""The parsers of calls that a request requires."""

import pytest

from appliance.text.parsing.events import merge_events
from appliance.text.tools.forced import REQUIRED_CALLS, named_call
from appliance.text.tools.format import ToolContext, ToolFormat

from .parsing import calls_of, content_of

FORMS: list[tuple[ToolFormat, str, tuple[tuple[str, str], ...]]] = [
    (named_call("f"), ' {"a": [1, "}"]}', (("f", '{"a": [1, "}"]}'),)),
    (named_call("f"), '{"a": [1', (("f!", '{"a": [1'),)),
    (REQUIRED_CALLS, '[{"name": "f", "arguments": {"a": 1}},{"name":"g","arguments":{}}]',
     (("f", '{"a": 1}'), ("g", "{}"))),
    (REQUIRED_CALLS, '[{"name": "f", "arguments": {"a', (("f!", '{"a'),)),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "calls"), FORMS)
def test_reading_them(form: ToolFormat, text: str, calls: tuple[tuple[str, str], ...]) -> None:
    for at in range(len(text)):
        parser = form.new_parser(ToolContext({}))
        events = merge_events(parser.feed(text[:at]) + parser.feed(text[at:]) + parser.finish())
        assert calls_of(events) == calls
        assert content_of(events) == ""
