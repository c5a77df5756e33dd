"""Published templates, reduced to how they write tool calls: each gets calls in the form that it needs.

They render as transformers renders them.
"""

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from appliance.text.template import ChatTemplate
from appliance.text.tool_style import ToolStyle, detect_tool_style

QWEN = (
    "{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or (message.role == 'assistant' and not "
    "message.tool_calls) %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}{%- if message.content %}"
    "{{- '\\n' + message.content }}{%- endif %}{%- for tool_call in message.tool_calls %}"
    "{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}'
    "{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' %}{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- endif %}{%- endfor %}"
)
QWEN3 = (
    "{%- for message in messages %}{%- set content = message.content if message.content is string else '' %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.reasoning_content is string %}"
    "{{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}{{- content }}"
    "{%- for tool_call in message.tool_calls or [] %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' + tool_call.function.name + \'", "arguments": \' }}'
    "{%- if tool_call.function.arguments is string %}{{- tool_call.function.arguments }}"
    "{%- else %}{{- tool_call.function.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}"
)
LLAMA31 = (
    "{{- bos_token }}{%- for message in messages %}{%- if not (message.role == 'ipython' or message.role == 'tool' or "
    "'tool_calls' in message) %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{%- elif 'tool_calls' in message %}"
    "{%- if not message.tool_calls|length == 1 %}{{- raise_exception('only single tool-calls at once!') }}{%- endif %}"
    "{%- set tool_call = message.tool_calls[0].function %}{{- '{\"name\": \"' + tool_call.name + '\", ' }}"
    "{{- '\"parameters\": ' }}{{- tool_call.arguments | tojson }}{{- '}' }}{{- '<|eot_id|>' }}"
    "{%- elif message.role == 'tool' or message.role == 'ipython' %}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{%- if message.content is mapping or message.content is "
    "iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}"
    "{%- endif %}{%- endfor %}"
)
MISTRAL = (
    "{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{{- '[INST] ' + message['content'] + '[/INST]' }}"
    "{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- '[TOOL_CALLS] [' }}"
    "{%- for tool_call in message.tool_calls %}{%- set out = tool_call.function|tojson %}{{- out[:-1] }}"
    "{%- if not tool_call.id is defined or tool_call.id|length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    "{{- ', \"id\": \"' + tool_call.id + '\"}' }}{%- if not loop.last %}{{- ', ' }}{%- else %}"
    "{{- ']' + eos_token }}{%- endif %}{%- endfor %}{%- elif message['role'] == 'tool' %}"
    "{{- '[TOOL_RESULTS] {\"content\": ' + message.content|string + ', ' }}"
    "{{- '\"call_id\": \"' + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}{%- else %}"
    "{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
DEEPSEEK = (
    "{{bos_token}}{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<U>' + message['content']}}"
    "{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}"
    "{%- for tool in message['tool_calls']%}{{'<begin>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n"
    "```json\\n' + tool['function']['arguments'] + '\\n```<end>'}}{%- endfor %}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}{{'<A>' + message['content']}}"
    "{%- endif %}{%- if message['role'] == 'tool' %}{{'<out>' + message['content']}}{%- endif %}{%- endfor %}"
)
HERMES = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}{{- '<tool_call>' + {'name': call.function.name, 'arguments': "
    "call.function.arguments} | tojson + '</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}"
)
GLM = (
    "{%- for m in messages %}{{- '<|' ~ m.role ~ '|>' ~ m.content }}{%- for tc in m.tool_calls or [] %}"
    "{{- '<tool_call>' ~ tc.function.name }}{% for k, v in tc.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>{%- endfor %}{%- endfor %}"
)
HARMONY = (
    "{%- set last_tool_call = namespace(name=none) %}{%- for message in messages %}"
    "{%- if message.role == 'assistant' and 'tool_calls' in message %}"
    "{%- if message.content and message.thinking %}{{- raise_exception('Cannot pass both content and thinking') }}"
    "{%- endif %}{%- set tool_call = message.tool_calls[0] %}{%- if tool_call.function %}"
    "{%- set tool_call = tool_call.function %}{%- endif %}{%- if message.thinking %}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}"
    "{{- '<|start|>assistant to=' }}{{- 'functions.' + tool_call.name + '<|channel|>commentary ' }}"
    "{{- 'json<|message|>' }}{{- tool_call.arguments|tojson }}{{- '<|call|>' }}"
    "{%- set last_tool_call.name = tool_call.name %}{%- elif message.role == 'tool' %}"
    "{%- if last_tool_call.name is none %}{{- raise_exception('Message has tool role, but there was no previous "
    "assistant message with a tool call!') }}{%- endif %}{{- '<|start|>functions.' + last_tool_call.name }}"
    "{{- ' to=assistant<|channel|>commentary<|message|>' + message.content|tojson + '<|end|>' }}{%- else %}"
    "{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|start|>assistant{%- endif %}"
)
STYLES = {
    "qwen2.5": (QWEN, ToolStyle()),
    "qwen3": (QWEN3, ToolStyle()),
    "llama3.1": (LLAMA31, ToolStyle()),
    "mistral": (MISTRAL, ToolStyle()),
    "deepseek": (DEEPSEEK, ToolStyle("text")),
    "hermes": (HERMES, ToolStyle("object", "")),
    "glm4.5": (GLM, ToolStyle("object", "")),
    "gpt-oss": (HARMONY, ToolStyle()),
}
TOKENS: Any = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", STYLES)
def test_the_style_is_found(name: str) -> None:
    source, style = STYLES[name]
    assert detect_tool_style(ChatTemplate(source, TOKENS)) == style


@pytest.mark.parametrize("name", STYLES)
def test_history_renders_as_transformers_renders_it(name: str) -> None:
    source, style = STYLES[name]
    arguments: Any = {"city": "S\u00e3o <b>", "n": [1, None, True]}
    given = arguments if style.arguments == "object" else json.dumps(arguments)
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": given}}
    messages: Any = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": style.empty_content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "f", "content": "12"},
        {"role": "assistant", "content": "It is 12."},
    ]
    ours = ChatTemplate(source, TOKENS).render(messages, tools=TOOLS)
    theirs: Any = render_jinja_template(
        [messages], tools=TOOLS, chat_template=source, add_generation_prompt=True, **TOKENS
    )
    assert ours == theirs[0][0]


def test_a_template_without_tools_gets_the_usual_form() -> None:
    source = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
    assert detect_tool_style(ChatTemplate(source)).arguments == "text"


def test_thinking_can_be_turned_off() -> None:
    template = ChatTemplate(QWEN3)
    text = template.render([{"role": "user", "content": "Hi"}], variables={"enable_thinking": False})
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
