"""Every format is parsed correctly, and the cuts between pieces of text change nothing."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.text.parsing.events import CallDone, CallStarted, ContentDelta, Event

from .cases import CASES, Case
from .parsing import calls_of, content_of, parse

SHORT = 150  # characters; every split point is tried up to here
IDS = [f"{case.format}-{place}" for place, case in enumerate(CASES)]


def check_order(events: list[Event]) -> None:
    """Each call starts, has its arguments and is done, one after another."""
    of_calls = [event for event in events if not isinstance(event, ContentDelta)]
    for before, after in pairwise(of_calls):
        if isinstance(after, CallStarted):
            assert isinstance(before, CallDone)
        else:
            assert not isinstance(before, CallDone)
    assert not of_calls or isinstance(of_calls[-1], CallDone)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_meaning(case: Case) -> None:
    events = parse(case.format, [case.text])
    assert content_of(events) == case.content
    assert calls_of(events) == case.calls
    check_order(events)
    for name, arguments in calls_of(events):
        if not name.endswith("!"):
            assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_cuts_change_nothing(case: Case) -> None:
    text, whole = case.text, parse(case.format, [case.text])
    assert parse(case.format, list(text)) == whole
    for at in range(1, min(len(text), SHORT)):
        assert parse(case.format, [text[:at], text[at:]]) == whole


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_cuts_of_long_texts(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted({case.format for case in CASES})))
    texts = [case.text for case in CASES if case.format == name]
    text = "\n".join(data.draw(st.lists(st.sampled_from(texts), min_size=3, max_size=8)))
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=30)))
    pieces = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
    assert parse(name, pieces) == parse(name, [text])


def pieces_of_formats() -> st.SearchStrategy[str]:
    parts = sorted({piece for case in CASES for piece in (case.text[:20], case.text[-12:], case.text[20:40])})
    return st.lists(
        st.sampled_from([*parts, "{", "}", "[", "]", '"', "\\", ",", "<", "\n", " ", "x"]), max_size=12
    ).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=pieces_of_formats(), name=st.sampled_from(sorted({case.format for case in CASES})))
def test_broken_text_is_parsed_the_same_and_ordered(text: str, name: str) -> None:
    whole = parse(name, [text])
    assert parse(name, list(text)) == whole
    check_order(whole)
    if not calls_of(whole):
        assert content_of(whole) == text  # nothing is lost
    for call, arguments in calls_of(whole):
        if not call.endswith("!"):
            json.loads(arguments)
