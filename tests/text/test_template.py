"""Chat templates render as transformers renders them, and a hostile one is stopped."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from appliance.catalog.content_format import detect_content_format
from appliance.text.errors import ChatTemplateError
from appliance.text.template import ChatTemplate

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
