"""Shipped templates: they tell of the tools, show results, and write calls as their parser reads them."""

from typing import Any

import pytest

from appliance.catalog.parsers import TOOL_PARSERS, detect_parser
from appliance.catalog.templates import OF_PAIRS, SHIPPED, shipped_template
from appliance.text.template import ChatTemplate
from appliance.text.tool_style import ToolStyle, detect_tool_style

from .cases import SCHEMAS
from .parsing import calls_of, content_of, parse

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"About {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
CITY = 'S\u00e3o "P" \U0001f600'
CALLS = [
    {"id": "abcdefgh1", "type": "function", "function": {"name": "weather", "arguments": {"city": CITY, "days": 3}}},
    {"id": "abcdefgh2", "type": "function", "function": {"name": "now", "arguments": {}}},
]
QUESTION: dict[str, Any] = {"role": "user", "content": "How is it there?"}
WITH_TOOLS = [name for name in SHIPPED if name not in ("chatml", *OF_PAIRS)]


def render(name: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplate(shipped_template(name), TOKENS).render(messages, **options)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_the_prompt_tells_of_the_tools(name: str) -> None:
    system = {"role": "system", "content": "Be brief."}
    text = render(name, [system, QUESTION], tools=TOOLS)
    assert "About weather." in text
    assert "Be brief." in text
    assert "How is it there?" in text
    assert "About weather." not in render(name, [QUESTION])


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_its_parser_is_found_and_reads_what_it_writes(name: str) -> None:
    found = detect_parser(TOOL_PARSERS, shipped_template(name))
    assert found is not None
    before = render(name, [QUESTION], tools=TOOLS, add_generation_prompt=True)
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": CALLS}
    after = render(name, [QUESTION, call], tools=TOOLS, add_generation_prompt=False)
    common = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before))
    written = after[common:]
    for end in ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|end_of_text|>\n", "<|endoftext|>", "<|end|>", "<|eom|>"):
        written = written.removesuffix(end)
    written = written.removesuffix("<\uff5cend\u2581of\u2581sentence\uff5c>")
    events = parse(found.name, [written])
    assert [name for name, _ in calls_of(events)] == ["weather", "now"], written
    assert '"days": 3' in calls_of(events)[0][1]
    assert content_of(events) == ""


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_results_are_shown(name: str) -> None:
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "weather", "content": "12 degrees"},
        {"role": "tool", "tool_call_id": "abcdefgh2", "name": "now", "content": "noon"},
        {"role": "assistant", "content": "Cold at noon."},
        {"role": "user", "content": "Thanks."},
    ]
    text = render(name, messages, tools=TOOLS)
    places = [text.index(part) for part in ("12 degrees", "noon", "Cold at noon.", "Thanks.")]
    assert places == sorted(places)
    assert "None" not in text
    assert "{'" not in text


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_arguments_are_objects(name: str) -> None:
    assert detect_tool_style(ChatTemplate(shipped_template(name), TOKENS)) == ToolStyle()


def test_chatml() -> None:
    assert render("chatml", [QUESTION]) == "<|im_start|>user\nHow is it there?<|im_end|>\n<|im_start|>assistant\n"


PAIR = [{"role": "query", "content": "what is blue"}, {"role": "document", "content": "the sky"}]


@pytest.mark.parametrize(
    ("name", "start", "middle", "end"),
    [
        ("qwen3-reranker", "<|im_start|>system\nJ", "y>: what is blue\n<Document>: the sky<|im_end|>", "</think>\n\n"),
        ("mxbai-rerank-v2", "<|im_start|>system\nYou", "query: what is blue\ndocument: the sky\nYou", "assistant\n"),
        ("bge-reranker-v2-gemma", "A: what", "A: what is blue\nB: the sky\nGiven a query A and", "'Yes' or 'No'."),
    ],
)  # fmt: skip
def test_templates_of_pairs(name: str, start: str, middle: str, end: str) -> None:
    assert name in OF_PAIRS
    text = render(name, PAIR, add_generation_prompt=True)
    assert text.removeprefix(TOKENS.get("bos_token", "")).startswith(start)
    assert text.endswith(end)
    assert middle in text
    told = render(name, [{"role": "system", "content": "find colours"}, *PAIR], add_generation_prompt=True)
    assert "find colours" in told
