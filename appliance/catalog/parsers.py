"""The parsers of tool calls and of reasoning: their import paths, and the signs in chat templates that select them."""

import msgspec


class Parser(msgspec.Struct, frozen=True):
    """One parser. path: its ToolFormat or ReasoningFormat, "module:NAME".

    signs: texts that the chat templates of its models all contain; empty if templates do not show it.
    """

    name: str
    path: str
    signs: tuple[str, ...] = ()


def _tools(name: str, *signs: str) -> Parser:
    module = name.replace("-", "_")
    return Parser(name, f"appliance.text.tools.{module}:{module.upper()}", signs)


def _reasoning(name: str, *signs: str) -> Parser:
    return Parser(name, f"appliance.text.reasoning.{name}:{name.upper()}", signs)


# The first parser whose signs are all in the template is chosen.
TOOL_PARSERS: tuple[Parser, ...] = (
    _tools("gpt_oss", "<|channel|>", "<|start|>"),
    _tools("qwen3_coder", "<function=", "<parameter="),
    _tools("glm45", "<arg_key>"),
    _tools("kimi_k2", "<|tool_call_begin|>"),
    _tools("deepseek_v3", "<\uff5ctool\u2581call\u2581begin\uff5c>"),
    _tools("gemma4", "<|tool_call>", "<tool_call|>"),
    _tools("internlm", "<|action_start|>"),
    _tools("llama4_pythonic", "<|python_start|>"),
    _tools("llama3_json", "<|python_tag|>"),
    _tools("mistral", "[TOOL_CALLS]"),
    _tools("hunyuan_a13b", "<tool_calls>", "<answer>"),
    _tools("jamba", "<tool_calls>"),
    _tools("granite-20b-fc", "<function_call>"),
    _tools("phi4_mini_json", "functools["),
    _tools("granite", "<|tool_call|>"),
    _tools("hermes", "<tool_call>"),
    _tools("pythonic", "[func_name1(params_name1="),
)

REASONING_PARSERS: tuple[Parser, ...] = (
    _reasoning("gpt_oss", "<|channel|>", "<|start|>"),
    _reasoning("gemma4", "<|channel>", "<channel|>"),
    _reasoning("mistral", "[THINK]"),
    _reasoning("granite", "Here is my thought process:"),
    _reasoning("hunyuan_a13b", "<think>", "<answer>"),
    _reasoning("glm45", "<think>", "[gMASK]"),
    _reasoning("deepseek_r1", "</think>", "<\uff5cAssistant\uff5c>"),
    _reasoning("qwen3", "<think>"),
    _reasoning("step3"),
)

OLD_NAMES = {"GptOss": "gpt_oss", "deepseek_v31": "deepseek_v3", "qwen3_xml": "qwen3_coder"}


def find_parser(table: tuple[Parser, ...], name: str) -> Parser | None:
    """Returns a parser by its name, or by a former name; None if there is none."""
    name = OLD_NAMES.get(name, name)
    return next((parser for parser in table if parser.name == name), None)


def detect_parser(table: tuple[Parser, ...], template: str) -> Parser | None:
    return next((parser for parser in table if parser.signs and all(sign in template for sign in parser.signs)), None)
