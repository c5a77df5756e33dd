"""Which parsers a plan has, and why."""

import importlib
from pathlib import Path

import msgspec
import pytest

from appliance.catalog.parsers import REASONING_PARSERS, TOOL_PARSERS, Parser, detect_parser, find_parser
from appliance.catalog.templates import shipped_template
from appliance.plan.prepare import resolve_files
from appliance.plan.types import EnginePlan

from .machines import MODEL, decision, load, plan, small_model


def planned(template: str | None, decoding: str = "") -> EnginePlan:
    model = small_model()
    tokenizer = msgspec.structs.replace(model.tokenizer, chat_template=template)
    return plan(load(MODEL + decoding), msgspec.structs.replace(model, tokenizer=tokenizer))


def test_parsers_come_from_the_template() -> None:
    found = planned("{{ '<tool_call>' }}{{ '<think>' }}")
    assert found.serving.parsers.tools == "appliance.text.tools.hermes:HERMES"
    assert found.serving.parsers.reasoning == "appliance.text.reasoning.qwen3:QWEN3"
    assert found.serving.parsers.auto_tool_choice
    assert "<tool_call>" in decision(found, "serving.parsers.tools").reason


def test_a_plain_template_has_none() -> None:
    parsers = planned("{{ messages }}").serving.parsers
    assert parsers.tools is None
    assert parsers.reasoning is None
    assert not parsers.auto_tool_choice
    assert planned(None).serving.parsers.tools is None


def test_mistral_common_shows_its_tool_format_without_a_template() -> None:
    found = planned("{{ '<tool_call>' }}{{ '<think>' }}", "  tokenizer_mode: mistral\n")
    assert (found.model.tokenizer_mode, found.model.chat_template) == ("mistral-common", None)
    assert found.serving.parsers.tools == "appliance.text.tools.mistral:MISTRAL"
    assert found.serving.parsers.reasoning is None
    assert found.serving.structured.backend == "guidance", "the bytes of tokens are known"
    assert "mistral-common" in decision(found, "model.chat_template").reason


def test_the_spec_decides() -> None:
    decoding = "decoding: {tool_parser: mistral, reasoning_parser: GptOss, enable_auto_tool_choice: false}\n"
    found = planned("{{ '<tool_call>' }}", decoding)
    assert found.serving.parsers.tools == "appliance.text.tools.mistral:MISTRAL"
    assert found.serving.parsers.reasoning == "appliance.text.reasoning.gpt_oss:GPT_OSS"
    assert not found.serving.parsers.auto_tool_choice
    assert decision(found, "serving.parsers.tools").source == "spec"
    none = planned("{{ '<tool_call>' }}", "decoding: {tool_parser: none, reasoning_parser: none}\n")
    assert none.serving.parsers.tools is None


def test_a_reasoning_plugin_is_planned_by_its_path() -> None:
    decoding = "decoding: {reasoning_parser_plugin: 'mine.formats:MINE', trust_plugins: true}\n"
    assert planned("{{ '<think>' }}", decoding).serving.parsers.reasoning == "mine.formats:MINE"


def test_a_plugin_is_planned_by_its_path() -> None:
    decoding = "decoding: {tool_parser_plugin: 'mine.formats:MINE', trust_plugins: true}\n"
    assert planned("{{ '<tool_call>' }}", decoding).serving.parsers.tools == "mine.formats:MINE"


@pytest.mark.parametrize("parser", [*TOOL_PARSERS, *REASONING_PARSERS], ids=lambda parser: parser.path)
def test_every_parser_is_there(parser: Parser) -> None:
    module, _, name = parser.path.partition(":")
    assert getattr(importlib.import_module(module), name).name == parser.name


@pytest.mark.parametrize("table", [TOOL_PARSERS, REASONING_PARSERS], ids=["tools", "reasoning"])
def test_the_signs_of_a_parser_lead_to_it(table: tuple[Parser, ...]) -> None:
    for parser in table:
        if parser.signs:
            assert detect_parser(table, " ".join(parser.signs)) == parser


def test_older_names() -> None:
    assert find_parser(TOOL_PARSERS, "qwen3_xml") == find_parser(TOOL_PARSERS, "qwen3_coder")
    assert find_parser(TOOL_PARSERS, "nothing") is None


def test_a_shipped_template_by_its_name(tmp_path: Path) -> None:
    files = resolve_files(load(MODEL + "  chat_template: hermes\n"), tmp_path)
    assert files.chat_template == shipped_template("hermes")
    (tmp_path / "hermes").write_text("of the user")
    assert resolve_files(load(MODEL + "  chat_template: hermes\n"), tmp_path).chat_template == "of the user"
