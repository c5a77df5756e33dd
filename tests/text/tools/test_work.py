"""Hostile text costs no more than any other: the work grows with the number of characters, for any cuts."""

import pytest

from appliance.catalog.parsers import TOOL_PARSERS
from tests.text.counting import CallCounter

from .parsing import new_parser

UNITS = [
    "<tool_call>", "<", "[TOOL_CALLS]", '{"name": ', "[", '{"a":', "\\", '<tool_call>{"', "<function=weather>", "\n{",
    '<tool_call>{"name":"weather","arguments":{', "[weather(city=", "[weather(city='\\", " ", "\n", "`", "-",
    "<\uff5ctool\u2581call\u2581begin\uff5c>", "<|python_tag|>", "<tool_call>x<arg_key>", "</tool_call>",
    "<tool_call>\n ",
]  # fmt: skip


def work(name: str, text: str, size: int) -> int:
    parser = new_parser(name)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    with CallCounter() as counter:
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
    assert parser.reader.num_characters <= len(text)  # nothing is read twice
    return counter.count


@pytest.mark.parametrize("name", [entry.name for entry in TOOL_PARSERS])
@pytest.mark.parametrize("unit", UNITS)
def test_doubling_the_text_doubles_the_work(name: str, unit: str) -> None:
    for size in (1, 1 << 30):
        once, twice = (work(name, (unit * 2000)[:length], size) for length in (800, 1600))
        assert twice <= 2.05 * once + 50
