"""Chat templates render as transformers renders them, and a hostile one is stopped."""

import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from appliance.catalog.content_format import detect_content_format
from appliance.text.errors import ChatTemplateError
from appliance.text.template import ChatTemplate, choose_template
from appliance.text.template_sandbox import BoundedEnvironment, TemplateBoundError, render_bounded

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PARTS = (
    "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% elif part.type == 'image' %}<image>{% endif %}{% endfor %}{% endfor %}"
)
EXTENSIONS = (
    "{%- for message in messages %}\n    {%- if message.role == 'system' %}{% continue %}{% endif -%}\n"
    "  {% generation %}[{{ message | tojson }}|{{ message.content | tojson(indent=2) }}]{% endgeneration %}\n"
    "    {%- if loop.index > 3 %}{% break %}{% endif %}\n{%- endfor %}{% macro m(x) %}({{ x }}){% endmacro %}"
    "{{ m('y') ~ 1 ~ 'z' }}"
)
CONVERSATIONS = [
    [{"role": "user", "content": "  Hi <b>\u00e9\u5317</b>\n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "q"}],
]
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA, EXTENSIONS], ids=["chatml", "llama3", "gemma", "extensions"])
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one", "three", "system"])
@pytest.mark.parametrize("prompt", [True, False])
def test_equals_transformers(source: str, messages: list[dict[str, str]], prompt: bool) -> None:
    template = ChatTemplate(source, TOKENS)
    try:
        expected, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=prompt, **TOKENS)
    except Exception as error:  # noqa: BLE001 - jinja2's, with the template's own words
        with pytest.raises(ChatTemplateError, match=str(error)):
            template.render(messages, add_generation_prompt=prompt)
        return
    assert template.render(messages, add_generation_prompt=prompt) == expected[0]


@pytest.mark.parametrize("source", [CHATML, LLAMA3, GEMMA])
def test_continuing_the_final_message(source: str) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is "}]
    expected, _ = render_jinja_template([messages], chat_template=source, continue_final_message=True, **TOKENS)
    text = ChatTemplate(source, TOKENS).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.rstrip() == expected[0].rstrip()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "string"),
        (LLAMA3, "string"),
        (GEMMA, "string"),
        (PARTS, "openai"),
        ("{{ broken", "string"),
        ("x", "string"),
    ],
)
def test_content_format(source: str, expected: str) -> None:
    assert detect_content_format(source) == expected


def test_named_templates() -> None:
    assert choose_template({"default": "d", "tool_use": "t"}) == "d"
    assert choose_template({"default": "d", "tool_use": "t"}, "tool_use") == "t"
    assert choose_template({"rag": "r"}) == "r"
    assert choose_template({}) is None
    assert choose_template({"a": "1", "b": "2"}) is None


def test_variables_and_documents() -> None:
    source = "{{ enable_thinking }}{% for d in documents %}{{ d.title }}{% endfor %}{{ strftime_now('%Y') }}"
    source += "{{ messages | length }}"
    text = ChatTemplate(source).render(
        [{"role": "user", "content": "x"}],
        documents=[{"title": "T"}],
        variables={"enable_thinking": False, "messages": "no"},
    )
    assert text == f"FalseT{datetime.datetime.now().year}1"


def test_syntax_error_names_the_line() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("\n{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}", "{{ messages.__class__ }}", "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}", "{{ self._TemplateReference__context }}", "{{ messages.append(1) }}",
        "{% set x = messages[0].update({'a': 1}) %}", "{{ lipsum.__globals__['os'] }}", "{{ strftime_now.__code__ }}",
        "{{ ('{0.__class__}').format(1) }}", "{{ messages | attr('__class__') | attr('mro') }}",
    ],
)  # fmt: skip
def test_no_way_out(source: str) -> None:
    """An error, or nothing that helps: never an object behind the values."""
    try:
        text = ChatTemplate(source).render([{"role": "user", "content": "x"}])
    except ChatTemplateError:
        return
    assert "class" not in text
    assert "function" not in text


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}", "{{ 'a' * (10 ** 9) }}", "{{ [0] * (10 ** 8) }}", "{{ 10 ** (10 ** 9) }}",
        "{{ 9 ** 99 ** 9 }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a'.ljust(10 ** 10) }}", "{{ 'a'.center(10 ** 10) }}", "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a'.zfill(10 ** 10) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}", "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=1000000000) }}", "{{ '%1000000000d' | format(1) }}",
        "{{ 'a' | indent(10 ** 10, true) }}",
        "{{ ('a' * 9999).replace('', 'b' * 9999) }}", "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}",
        "{{ ('b' * 9999).join(['a'] * 9999) }}", "{{ '\t'.expandtabs(10 ** 10) }}",
    ],
)  # fmt: skip
def test_bounds(source: str) -> None:
    with pytest.raises((ChatTemplateError, TemplateBoundError)):
        render_fast(source)


def render_fast(source: str) -> str:
    """With a clock that runs ahead, so that endless loops end at once."""
    template = BoundedEnvironment().from_string(source)
    try:
        return render_bounded(template, {"messages": []}, seconds=0.2)
    except (OverflowError, RecursionError, ValueError) as error:
        raise ChatTemplateError(str(error)) from error


def test_output_is_bounded() -> None:
    with pytest.raises((ChatTemplateError, TemplateBoundError)):
        render_fast("{% set x = 'a' * 9999999 %}{{ x }}{{ x }}")


def test_ordinary_padding_stays() -> None:
    values: dict[str, Any] = {"messages": []}
    template = BoundedEnvironment().from_string(
        "{{ '%5.2f' % 1.5 }}|{{ 'a'.ljust(4) }}|{{ 'x' * 3 }}|{{ 'a,b'.split(',') | join('-') }}"
    )
    assert render_bounded(template, values) == " 1.50|a   |xxx|a-b"
