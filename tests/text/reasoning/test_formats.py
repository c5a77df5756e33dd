"""Every format is parsed correctly, and the cuts between pieces of text change nothing."""

import importlib
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.catalog.parsers import REASONING_PARSERS, TOOL_PARSERS, Parser, find_parser
from appliance.text.parsing.events import ContentDelta, Event, OutputParser, ReasoningDelta, merge_events
from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.tools.format import ToolContext, ToolFormat
from tests.text.counting import CallCounter

THINKS = ["deepseek_r1", "qwen3", "glm45", "step3", "hunyuan_a13b"]


@dataclass(frozen=True)
class Case:
    format: str
    text: str
    reasoning: str
    content: str
    is_open: bool | None = None


def _tagged(name: str) -> list[Case]:
    return [
        Case(name, "<think>\nHm.\n\nYes: a < b.\n</think>\n\nHello, <b>.\n", "Hm.\n\nYes: a < b.", "Hello, <b>.\n"),
        Case(name, "\n<think>\u5317 \U0001f600</think>caf\u00e9", "\u5317 \U0001f600", "caf\u00e9"),
        Case(name, "<think>\n\n</think>\n\nHello", "", "Hello"),
        Case(name, "Hm.\n</think>\nHello", "Hm.", "Hello", True),
        Case(name, "<think>Hm.</think>Hello", "Hm.", "Hello", True),
        Case(name, "\n\nHello </think> you", "", "\n\nHello </think> you", False),
        Case(name, "<think>never done\n", "never done", ""),
        Case(name, "<think>a </thin", "a </thin", ""),
        Case(name, "", "", ""),
    ]


CASES = [
    *(case for name in THINKS if name != "hunyuan_a13b" for case in _tagged(name)),
    Case("hunyuan_a13b", "<think>\nHm.\n</think>\n<answer>\nHello.\n\nBye\n</answer>", "Hm.", "Hello.\n\nBye"),
    Case("hunyuan_a13b", "<think>\nHm.\n</think>\nHello", "Hm.", "Hello"),
    Case("hunyuan_a13b", "Hello <answ", "", "Hello <answ"),
    Case("qwen3", "Hello <think> x", "", "Hello <think> x"),
    Case("qwen3", " <thi", "", " <thi"),
    Case("deepseek_r1", "Hm.</think>Hello", "Hm.", "Hello"),
    Case("step3", "Hm.</think>Hello", "Hm.", "Hello"),
    Case("mistral", "[THINK]Hm. [x][/THINK]Hello [y]", "Hm. [x]", "Hello [y]"),
    Case("mistral", "Hello", "", "Hello"),
    Case("gemma4", "<|channel>thought\nHm.\n<channel|>Hello <|channel>", "Hm.", "Hello <|channel>"),
    Case("gemma4", "Hm.<channel|>Hello", "Hm.", "Hello", True),
    Case("gemma4", "Hello <channel|>", "", "Hello <channel|>", False),
    Case("granite", "Here is my thought process: a\nb\n\nHere is my response: c d", "a\nb", "c d"),
    Case("granite", "Here's my thought process:a Here's my response:c", "a", "c"),
    Case("granite", "Here is my thing", "", "Here is my thing"),
    Case("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
         "<|message|>Hello<|return|>", "Hm.", "Hello"),
    Case("gpt_oss", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis"
         "<|message|>b", "a\nb", ""),
    Case("gpt_oss", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>x",
         "", "I look.\nx"),
    Case("gpt_oss", "<|channel|>analysis to=python code<|message|>print()<|call|>", "print()", ""),
    Case("gpt_oss", "plain text", "", "plain text"),
    Case("gpt_oss", "<|channel|>final", "", "<|channel|>final"),
    Case("gpt_oss", "<|message|>Hello", "", "Hello"),
]  # fmt: skip
IDS = [f"{case.format}-{place}" for place, case in enumerate(CASES)]


def load(table: tuple[Parser, ...], name: str) -> ReasoningFormat | ToolFormat:
    entry = find_parser(table, name)
    assert entry is not None
    module, attribute = entry.path.split(":")
    form: ReasoningFormat | ToolFormat = getattr(importlib.import_module(module), attribute)
    assert form.name == name
    return form


def new_parser(name: str, is_open: bool | None = None) -> OutputParser:
    form = load(REASONING_PARSERS, name)
    assert isinstance(form, ReasoningFormat)
    if form.script is not None:
        return form.new_parser(is_open)
    whole = load(TOOL_PARSERS, name)
    assert isinstance(whole, ToolFormat)
    return whole.new_parser(ToolContext({}))


def parse(case: Case, pieces: list[str]) -> list[Event]:
    parser = new_parser(case.format, case.is_open)
    return merge_events([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_meaning(case: Case) -> None:
    events = parse(case, [case.text])
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == case.reasoning
    assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == case.content


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_cuts_change_nothing(case: Case) -> None:
    text, whole = case.text, parse(case, [case.text])
    assert parse(case, list(text)) == whole
    for at in range(1, len(text)):
        assert parse(case, [text[:at], text[at:]]) == whole


PARTS = [
    "<think>", "</think>", "<answer>", "</answer>", "[THINK]", "[/THINK]", "<|channel|>", "analysis", "<|message|>",
    "<|end|>", "<|start|>", "<", "\n", " ", "x", "to=functions.f ", "{}", "Here is my response:",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_text_and_cuts(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    text = case.text[:20] + "".join(data.draw(st.lists(st.sampled_from(PARTS), max_size=20)))
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
    assert parse(case, pieces) == parse(case, [text]) == parse(case, list(text))


@pytest.mark.parametrize("name", [*THINKS, "mistral"])
def test_a_prompt_tells_where_its_answer_begins(name: str) -> None:
    form = load(REASONING_PARSERS, name)
    assert isinstance(form, ReasoningFormat)
    assert form.is_open_after(f"<|assistant|>{form.start}\n") is True
    assert form.is_open_after(f"<|assistant|>{form.start}\n\n{form.end}\n\n") is False
    assert form.is_open_after("<|assistant|>\n") is None


def test_a_message_that_goes_on_tells_too() -> None:
    form = load(REASONING_PARSERS, "deepseek_r1")
    assert isinstance(form, ReasoningFormat)
    assert form.is_open_in("<think>\nHm, ")
    assert not form.is_open_in("<think>\nHm.</think>\nThe answer is ")
    assert not form.is_open_in("The answer is ")


def work(name: str, text: str, size: int) -> int:
    parser = new_parser(name)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    with CallCounter() as counter:
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
    return counter.count


@pytest.mark.parametrize("name", [entry.name for entry in REASONING_PARSERS])
@pytest.mark.parametrize(
    "unit", ["<", "<think>", "</think>", "</thin", "<answer>", "[/THINK", "\n", " \n<", "Here is my "]
)
def test_doubling_the_text_doubles_the_work(name: str, unit: str) -> None:
    for size in (1, 1 << 30):
        once, twice = (work(name, (unit * 2000)[:length], size) for length in (800, 1600))
        assert twice <= 2.05 * once + 50
