"""Outputs of models in each format, and the calls that they contain."""

from dataclasses import dataclass

DS = "<\uff5ctool\u2581{}\uff5c>"
BEGIN, END = DS.format("calls\u2581begin"), DS.format("calls\u2581end")
CALL, CALL_END, SEP = DS.format("call\u2581begin"), DS.format("call\u2581end"), DS.format("sep")

SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "options": {"type": "object"},
            "unit": {"enum": ["C", "F"]},
            "when": {"type": ["string", "null"]},
        },
    },
    "now": {"type": "object", "properties": {}},
}


@dataclass(frozen=True)
class Case:
    """calls: name and arguments' text; a name that ends with "!" is of an incomplete call."""

    format: str
    text: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()


OSLO = '{"city": "Oslo"}'
NESTED = '{"city": "a \\"b\\" {c} \\u00e9 \u5317\U0001f600", "options": {"x": [1, -2.5e3, {"y": null}], "z": true}}'
ONE = (("weather", OSLO),)
TWO = (*ONE, ("now", "{}"))


def _object(arguments: str, name: str = "weather", key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def _hermes(arguments: str, name: str = "weather") -> str:
    return f"<tool_call>\n{_object(arguments, name)}\n</tool_call>"


def _marked(name: str, before: str, after: str, key: str = "arguments") -> list[Case]:
    """Formats that are markers around an object, one at a time."""

    def call(arguments: str, tool: str = "weather") -> str:
        return f"{before}{_object(arguments, tool, key)}{after}"

    return [
        Case(name, "", ""),
        Case(name, "Just words, <b> and [x] {y}.\n", "Just words, <b> and [x] {y}.\n"),
        Case(name, call(OSLO), "", ONE),
        Case(name, call(NESTED), "", (("weather", NESTED),)),
        Case(name, f"Let me look.\n\n{call(OSLO)}\n", "Let me look.", ONE),
        Case(name, call(OSLO) + "\n" + call("{}", "now"), "", TWO),
        Case(name, f"{before}{{no json}} then", f"{before}{{no json}} then"),
        Case(name, f"{before}{{no}} {call(OSLO)}", f"{before}{{no}}", ONE),
        Case(name, call(OSLO)[: len(before) + 12], call(OSLO)[: len(before) + 12]),
        Case(name, before + '{"name": "weather", "arguments": {"city": "Os', "", (("weather!", '{"city": "Os'),)),
        Case(name, before + '{"name": "weather", "arguments": {"city": oops}}', "oops}}", (("weather!", '{"city": '),)),
    ]


def _array(name: str, before: str, after: str) -> list[Case]:
    """Formats that are markers around an array."""
    two = f"{before}[{_object(OSLO)}, {_object('{}', 'now')}]{after}"
    return [
        Case(name, two, "", TWO),
        Case(name, f"I will.\n{two}", "I will.", TWO),
        Case(name, f"{before}[{_object(NESTED)}]{after}", "", (("weather", NESTED),)),
        Case(name, f"{before}[{_object(OSLO)}, oops", ", oops", ONE),
        Case(name, f"{before}[]{after}", f"{before}[]{after}"),
        Case(name, f"{before}[1]", f"{before}[1]"),
        Case(name, f"{before}[{_object(OSLO)}", "", ONE),
    ]


HERMES = [
    *_marked("hermes", "<tool_call>\n", "\n</tool_call>"),
    Case("hermes", _hermes(OSLO)[:-5] + "> no end", "</tool_> no end", ONE),
    Case("hermes", f"<tool_call>{_object(OSLO)[:-1]}</tool_call>", "", ONE),
    Case("hermes", f"<tool_call>{_object(OSLO)}", "", ONE),
    Case("hermes", f"<tool_call>{_object(OSLO)}{_hermes('{}', 'now')}", "", TWO),
    Case("hermes", f"<tool_call><tool_call>{_object(OSLO)}</tool_call>", "<tool_call>", ONE),
    Case("hermes", '<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>', "", ONE),
    Case("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
         "", (("weather", '{"city": "Oslo"}'),)),
    Case("hermes", '<tool_call>{"name": "now"}</tool_call>', "", (("now", "{}"),)),
    Case("hermes", '<tool_call>{"name": "now", "arguments": null, "x": [1]}</tool_call>', "", (("now", "{}"),)),
    Case("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
         '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    Case("hermes", '<tool_call>{"name": "", "arguments": {}}', '<tool_call>{"name": "", "arguments": {}}'),
    Case("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "a\n\tb\\d"}}</tool_call>', "",
         (("weather", '{"city": "a\\n\\tb\\\\d"}'),)),
    Case("hermes", "a </tool_call> b", "a </tool_call> b"),
    Case("hermes", f"Sure:\n```json\n{_object(OSLO)}\n```\nDone.", "Sure:\nDone.", ONE),
    Case("hermes", f"{_object(OSLO)}\n{_object('{}', 'now')}", "", TWO),
    Case("hermes", f"Calling.\n{_object(OSLO)}", "Calling.", ONE),
    Case("hermes", f"Calling {_object(OSLO)}", f"Calling {_object(OSLO)}"),
    Case("hermes", '```json\n{"name": "Bob", "arguments": {}}\n```', '```json\n{"name": "Bob", "arguments": {}}\n```'),
    Case("hermes", "```python\nprint({})\n```\n{1: 2}\n", "```python\nprint({})\n```\n{1: 2}\n"),
    Case("hermes", '{"name": "weather"}', '{"name": "weather"}'),
    Case("hermes", "1 < 2 <tool", "1 < 2 <tool"),
    Case("hermes", f"before {_hermes(OSLO)} after {_hermes('{}', 'now')} end ", "before  after  end ", TWO),
]  # fmt: skip

LLAMA3 = [
    Case("llama3_json", "", ""),
    Case("llama3_json", "The answer is {x}.", "The answer is {x}."),
    Case("llama3_json", _object(OSLO, key="parameters"), "", ONE),
    Case("llama3_json", _object(OSLO), "", ONE),
    Case("llama3_json", f"{_object(OSLO, key='parameters')}; {_object('{}', 'now', 'parameters')}", "", TWO),
    Case("llama3_json", f"{_object(OSLO, key='parameters')}\n{_object('{}', 'now', 'parameters')}", "", TWO),
    Case("llama3_json", f"<|python_tag|>{_object(NESTED, key='parameters')}", "", (("weather", NESTED),)),
    Case("llama3_json", f"Sure.\n{_object(OSLO, key='parameters')}", "Sure.", ONE),
    Case("llama3_json", '{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}', "", ONE),
    Case("llama3_json", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}'),
    Case("llama3_json", '{"name": "weather", "age": 3}', '{"name": "weather", "age": 3}'),
    Case("llama3_json", '{"name": "weather"}', '{"name": "weather"}'),
    Case("llama3_json", '{"a": [1, 2]}\n', '{"a": [1, 2]}\n'),
    Case("llama3_json", '<|python_tag|>print("x")', '<|python_tag|>print("x")'),
    Case("llama3_json", f"{_object(OSLO)}; done", "; done", ONE),
    Case("llama3_json", '{"name": "weather", "parameters": {"city": "O', "", (("weather!", '{"city": "O'),)),
]

PYTHONIC = [
    Case("pythonic", "", ""),
    Case("pythonic", "See [the docs](http://x) and [1, 2].", "See [the docs](http://x) and [1, 2]."),
    Case("pythonic", '[weather(city="Oslo")]', "", ONE),
    Case("pythonic", "[weather(city='Oslo'), now()]", "", TWO),
    Case("pythonic", "Fine:\n[ weather( city = 'Oslo', ), now( ) ]\n", "Fine:", TWO),
    Case("pythonic", "[weather(city='it\\'s \"x\"', days=-3, unit=None, ok=True, bad=False)]", "",
         (("weather", '{"city": "it\'s \\"x\\"", "days": -3, "unit": null, "ok": true, "bad": false}'),)),
    Case("pythonic", "[weather(options={'a': [1, 2.5, (3, 4)], 'b': {}, \"c\": []}, days=1_000)]", "",
         (("weather", '{"options": {"a": [1, 2.5, [3, 4]], "b": {}, "c": []}, "days": 1000}'),)),
    Case("pythonic", "[weather(city='''a'b\n\"c''' , days=+.5)]", "",
         (("weather", '{"city": "a\'b\\n\\"c", "days": 0.5}'),)),
    Case("pythonic", "[weather(city='\\u00e9\\x41\\U0001F600\\d\\n', unit='')]", "",
         (("weather", '{"city": "\\u00e9A\U0001f600\\\\d\\n", "unit": ""}'),)),
    Case("pythonic", "[other(city='Oslo')]", "[other(city='Oslo')]"),
    Case("pythonic", "[weather('Oslo')]", "[weather('Oslo')]"),
    Case("pythonic", "[weather(city=f(x))]", "f(x))]", (("weather!", '{"city": '),)),
    Case("pythonic", "[weather(city='Os", "", (("weather!", '{"city": "Os'),)),
    Case("pythonic", "[weather(city='Oslo'), oops]", ", oops]", ONE),
    Case("llama4_pythonic", "<|python_start|>[weather(city='Oslo'), now()]<|python_end|>", "", TWO),
    Case("llama4_pythonic", "ok <|python_start|>[weather(city='Oslo')]<|python_end|> then", "ok then", ONE),
    Case("llama4_pythonic", "[weather(city='Oslo')]", "", ONE),
    Case("llama4_pythonic", "<|python_start|>x = 1<|python_end|>", "<|python_start|>x = 1<|python_end|>"),
]  # fmt: skip

MISTRAL = [
    *_array("mistral", "[TOOL_CALLS] ", ""),
    Case("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abcdefghi"}]', "", ONE),
    Case("mistral", f"[TOOL_CALLS]weather[ARGS]{OSLO}[TOOL_CALLS]now[ARGS]{{}}", "", TWO),
    Case("mistral", f"Let me.[TOOL_CALLS]weather[ARGS] {NESTED}", "Let me.", (("weather", NESTED),)),
    Case("mistral", f"[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{OSLO}", "", ONE),
    Case("mistral", f"[TOOL_CALLS]weather{OSLO}", "", ONE),
    Case("mistral", "[TOOL_CALLS]weather[ARGS]oops", "[TOOL_CALLS]weather[ARGS]oops"),
    Case("mistral", "a [TOOL_ b", "a [TOOL_ b"),
    Case("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Os', "", (("weather!", '{"city": "Os'),)),
]


def _deepseek(arguments: str, name: str = "weather") -> str:
    return f"{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}"


DEEPSEEK = [
    Case("deepseek_v3", "Only <text> \uff5c.", "Only <text> \uff5c."),
    Case("deepseek_v3", f"{BEGIN}{_deepseek(OSLO)}{END}", "", ONE),
    Case("deepseek_v3", f"Yes.{BEGIN}{_deepseek(NESTED)}\n{_deepseek('{}', 'now')}{END}", "Yes.",
         (("weather", NESTED), ("now", "{}"))),
    Case("deepseek_v3", f"{BEGIN}{CALL}weather{SEP}{OSLO}{CALL_END}{CALL}now{SEP}{{}}{CALL_END}{END}", "", TWO),
    Case("deepseek_v3", f"{BEGIN}oops{END}", f"{BEGIN}oops{END}"),
    Case("deepseek_v3", f"{BEGIN}{CALL}function{SEP}weather\nno", f"{BEGIN}{CALL}function{SEP}weather\nno"),
    Case("deepseek_v3", f"{BEGIN}{_deepseek(OSLO)[:-len(CALL_END) - 8]}", "", (("weather!", '{"city": "Os'),)),
]  # fmt: skip


def _xml(*arguments: tuple[str, str], name: str = "weather") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


QWEN3_CODER = [
    Case("qwen3_coder", "x < y <tool> </function>", "x < y <tool> </function>"),
    Case("qwen3_coder", _xml(("city", "Oslo")), "", ONE),
    Case("qwen3_coder", f"I look.\n{_xml(('city', 'Oslo'))}\n{_xml(name='now')}", "I look.", TWO),
    Case("qwen3_coder", _xml(("city", 'two\nlines "q" <b>\n'), ("days", "3"), ("options", '{"a": [1]}')), "",
         (("weather", '{"city": "two\\nlines \\"q\\" <b>\\n", "days": 3, "options": {"a": [1]}}'),)),
    Case("qwen3_coder", _xml(("days", "many"), ("when", "null"), ("unit", "5"), ("unknown", "7")), "",
         (("weather", '{"days": "many", "when": null, "unit": "5", "unknown": "7"}'),)),
    Case("qwen3_coder", _xml(("city", "Oslo")).removeprefix("<tool_call>\n"), "", ONE),
    Case("qwen3_coder", "<tool_call>\nhello", "<tool_call>\nhello"),
    Case("qwen3_coder", "<tool_call>\n<function=weather>\nhello", "<tool_call>\n<function=weather>\nhello"),
    Case("qwen3_coder", _xml(("city", "Oslo"))[:-25], "", (("weather!", '{"city": "Oslo"'),)),
    Case("qwen3_coder", "<function=weather><parameter=city>Os", "", (("weather!", '{"city": "Os'),)),
]  # fmt: skip

GLM45 = [
    Case("glm45", "plain <arg_key>", "plain <arg_key>"),
    Case("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>", "", ONE),
    Case("glm45", "Hm.<tool_call>weather<arg_key>days</arg_key><arg_value>2</arg_value><arg_key>city</arg_key>"
         "<arg_value>a\nb</arg_value></tool_call><tool_call>now\n</tool_call>", "Hm.",
         (("weather", '{"days": 2, "city": "a\\nb"}'), ("now", "{}"))),
    Case("glm45", "<tool_call>weather\n<oops>", "<tool_call>weather\n<oops>"),
    Case("glm45", "<tool_call>weather<arg_key>city</arg_key>oops", "oops", (("weather!", '{"city": '),)),
]  # fmt: skip

GEMMA4 = [
    Case("gemma4", "plain <tool_call|>", "plain <tool_call|>"),
    Case("gemma4", 'Hm.<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>', "Hm.", ONE),
    Case("gemma4", '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>',
         "", TWO),
    Case("gemma4", '<|tool_call>call:weather{city:<|"|>a "b" {c},\n<|"|>,days:-2.5e3,unit:None,'
         'options:{a:[1,<|"|>x<|"|>,true],b:{}}}<tool_call|>', "",
         (("weather", '{"city": "a \\"b\\" {c},\\n", "days": -2.5e3, "unit": null, '
                      '"options": {"a": [1, "x", true], "b": {}}}'),)),
    Case("gemma4", '<|tool_call>call:weather{<|"|>city<|"|>: "Oslo"}<tool_call|>', "", ONE),
    Case("gemma4", "<|tool_call>hello", "<|tool_call>hello"),
    Case("gemma4", "<|tool_call>call:weather oops", "<|tool_call>call:weather oops"),
    Case("gemma4", "<|tool_call>call:weather{days:oops,}", "oops,}", (("weather!", '{"days": '),)),
    Case("gemma4", '<|tool_call>call:weather{city:<|"|>Os', "", (("weather!", '{"city": "Os'),)),
]  # fmt: skip

KIMI = [
    Case("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
         f"{OSLO}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
         "<|tool_calls_section_end|>", "", TWO),
    Case("kimi_k2", "<|tool_calls_section_begin|>none", "<|tool_calls_section_begin|>none"),
    Case("kimi_k2", "Hello.", "Hello."),
]  # fmt: skip

CASES: list[Case] = [
    *HERMES,
    *_marked("granite", "<|tool_call|>", ""),
    *_array("granite", "<|tool_call|>", ""),
    *_array("granite", "<tool_call>", "</tool_call>"),
    *_marked("granite-20b-fc", "<function_call> ", "\n"),
    *_marked("internlm", "<|action_start|><|plugin|>\n", "<|action_end|>", "parameters")[:8],
    *_array("jamba", "<tool_calls>", "\n</tool_calls>"),
    *_array("hunyuan_a13b", "<tool_calls>", "</tool_calls>"),
    *_array("phi4_mini_json", "functools", ""),
    *LLAMA3, *PYTHONIC, *MISTRAL, *DEEPSEEK, *QWEN3_CODER, *GLM45, *GEMMA4, *KIMI,
]  # fmt: skip
