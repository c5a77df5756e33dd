"""A conversation that is continued ends with its last message's text, as the template writes it, and nothing more."""

import html
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from appliance.catalog.templates import OF_PAIRS, SHIPPED, shipped_template
from appliance.text.errors import ChatTemplateError
from appliance.text.template import ChatTemplate

from .test_template import CHATML, GEMMA, LLAMA3, PARTS
from .test_tool_style import STYLES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TURNS = "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content{} }}}}<|end|>\n{{% endfor %}}"
THINKING = (  # as Qwen3's: reasoning in the content is set apart and written in a form of its own
    "{%- for m in messages %}{{- '<|' + m.role + '|>' }}{%- if '</think>' in m.content %}"
    "{{- '<think>\\n' + m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') + '\\n</think>\\n\\n' }}"
    "{{- m.content.split('</think>')[-1].lstrip('\\n') }}{%- else %}{{- m.content }}{%- endif %}{{- '<|end|>' }}"
    "{%- endfor %}"
)
FORGETTING = TURNS.format(".split('</think>')[-1]")  # as DeepSeek R1's: earlier reasoning is left out
KEPT = {"chatml": CHATML, "parts": PARTS, "thinking": THINKING, "turns": TURNS.format("")}
_TRIMMING = {"llama3_json", "llama3.1", "pythonic"}  # of those below
PUBLISHED = {name: shipped_template(name) for name in SHIPPED if name not in OF_PAIRS}
PUBLISHED |= {name: source for name, (source, _) in STYLES.items()}
KEPT |= {name: source for name, source in PUBLISHED.items() if name not in _TRIMMING}
TRIMMED = {
    **{name: PUBLISHED[name] for name in sorted(_TRIMMING)},
    "llama3": LLAMA3, "gemma": GEMMA, "trim": TURNS.format("|trim"), "rstrip": TURNS.format(".rstrip()"),
    "spaced": "{% for m in messages %}<{{ m.role }}> {{ m.content | trim }} </s>{% endfor %}",
}  # fmt: skip
CHANGED: dict[str, tuple[str, Callable[[str], str]]] = {
    "json": (TURNS.format("|tojson"), lambda text: json.dumps(text, ensure_ascii=False)[:-1]),
    "message": ("{% for m in messages %}{{ m | tojson }},{% endfor %}", lambda text: json.dumps(text)[:-1]),
    "escaped": (TURNS.format("|e"), html.escape),
    "upper": (TURNS.format("|upper"), str.upper),
    "twice": ("{% for m in messages %}({{ m.content }}) {{ m.content }};{% endfor %}", lambda text: text),
}
TEXTS = st.text(st.sampled_from("ab |<>/\n\t'\"\\&{}[]01_-.:\u00e9\u5317\u00a0"), min_size=1, max_size=12)


def conversation(content: str, *, as_parts: bool = False) -> list[dict[str, Any]]:
    question, answer = "A question | <b>10</b>", content
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if as_parts:
        return [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    return messages


def continued(source: str, content: str) -> str:
    messages = conversation(content, as_parts=source == PARTS)
    return compiled(source).render(messages, add_generation_prompt=False, continue_final_message=True)


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS)


@cache
def before_content(source: str) -> str:
    """All that a template writes before the last message's text."""
    return continued(source, "probe").removesuffix("probe")


HARD_TEXTS = ["|", "<", ">", "\n", "The answer is ", "x\n", "<|im_end|", "<|", "assistant", "1", "1" + "0" * 40, "A"]


@pytest.mark.parametrize("name", KEPT)
@given(content=TEXTS)
@example(content=HARD_TEXTS[0])
@example(content=HARD_TEXTS[10])
def test_the_prompt_ends_with_the_text(name: str, content: str) -> None:
    assert continued(KEPT[name], content) == before_content(KEPT[name]) + content


@pytest.mark.parametrize("name", KEPT)
def test_texts_that_stand_in_end_tokens(name: str) -> None:
    for content in HARD_TEXTS:
        assert continued(KEPT[name], content) == before_content(KEPT[name]) + content


@pytest.mark.parametrize("name", TRIMMED)
@given(content=TEXTS)
@example(content="The answer is ")
@example(content="\n")
def test_a_template_that_trims(name: str, content: str) -> None:
    trimmed = content.rstrip() if name == "rstrip" else content.strip()
    assert continued(TRIMMED[name], content) == before_content(TRIMMED[name]) + trimmed


@pytest.mark.parametrize("name", CHANGED)
@given(content=TEXTS.filter(str.isascii))
def test_a_template_that_writes_the_text_in_another_form(name: str, content: str) -> None:
    source, form = CHANGED[name]
    text = continued(source, content)
    assert text.endswith(form(content).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    assert len(text) > len(form(content))


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA])
@given(content=TEXTS.filter(str.strip))
def test_equals_transformers(source: str, content: str) -> None:
    theirs: Any = render_jinja_template(
        [conversation(content)], chat_template=source, continue_final_message=True, **TOKENS
    )
    assert continued(source, content).rstrip() == theirs[0][0].rstrip()


def test_reasoning_in_a_form_of_its_own() -> None:
    for content in ("<think>\nfoo\n</think>\n\nThe ", "<think>foo</think>\nThe "):
        assert continued(THINKING, content).endswith("<|assistant|><think>\nfoo\n</think>\n\nThe ")
    assert continued(THINKING, "<think>\nfo").endswith("<|assistant|><think>\nfo")


@pytest.mark.parametrize("content", ["<think>\nfoo</think>", "<think>\nfoo\n</think>\n\nThe ", "[foo] </think>x"])
def test_text_that_the_template_leaves_out_is_said(content: str) -> None:
    with pytest.raises(ChatTemplateError, match="leaves out a part of the last message"):
        continued(FORGETTING, content)
    assert continued(FORGETTING, "The ").endswith("<|assistant|>The ")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", "does not show the last message"),
        ("{% for m in messages %}{{ m.content | reverse }}{% endfor %}", "does not show the last message"),
        ("{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}", "where the text .* ends"),
        ("{% for m in messages %}{{ m.content.removesuffix('.') }}</s>{% endfor %}", "where the text .* ends"),
        ("{% for m in messages %}{{ m.content }}{% if m.content[-1] == '.' %}!{% endif %}{% endfor %}", "where the"),
    ],
)
def test_what_cannot_be_told_is_said(source: str, problem: str) -> None:
    with pytest.raises(ChatTemplateError, match=problem):
        continued(source, "It is so.")


def test_the_last_part_with_text_is_continued() -> None:
    parts = [{"type": "text", "text": "one |"}, {"type": "text", "text": "two "}, {"type": "image"}]
    messages = [{"role": "user", "content": []}, {"role": "assistant", "content": parts}]
    text = ChatTemplate(PARTS).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<user><assistant>one |two "


@pytest.mark.parametrize("content", ["", None, [], [{"type": "image"}], [{"type": "text", "text": ""}]])
def test_a_message_without_text_cannot_be_continued(content: Any) -> None:
    messages = [{"role": "assistant", "content": content}]
    with pytest.raises(ChatTemplateError, match="needs text in the last message"):
        ChatTemplate(CHATML).render(messages, continue_final_message=True)


def test_a_message_with_tool_calls_cannot_be_continued() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [{"role": "assistant", "content": "Let me look.", "tool_calls": [call]}]
    with pytest.raises(ChatTemplateError, match="tool calls cannot be continued"):
        ChatTemplate(STYLES["qwen2.5"][0]).render(messages, continue_final_message=True)


def test_the_clock_stands_still_within_a_rendering() -> None:
    source = "{{ strftime_now('%H:%M:%S.%f') }}" + CHATML
    assert re.match(r"\d\d:\d\d:\d\d\.\d{6}<", continued(source, "x"))
