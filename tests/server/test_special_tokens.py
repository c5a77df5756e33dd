"""Formats whose marks are special tokens: parsers see them, users do not. And a format of the deployer's own."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan
from tests.server.harness import BOS, TEMPLATE, Server, byte_tokenizer, chat_prompt, encode, write_plan

ROOT = Path(__file__).resolve().parents[2]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ARGUMENTS = '{"city": "Oslo"}'


def tokens(text: str, special: list[str]) -> list[int]:
    """The ids of a text in which special tokens are spelled out."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@contextmanager
def serving(folder: Path, special: list[str], answer: list[int], parsers: ParsersPlan) -> Iterator[Server]:
    reply = Reply(encode(chat_prompt("go")), answer)
    path = write_plan(folder, Script(replies=[reply]), chat_template=TEMPLATE, parsers=parsers)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    server = Server(path, folder)
    try:
        server.wait_for("ready")
        yield server
    finally:
        server.close()


def parsers(tools: str, reasoning: str | None = None) -> ParsersPlan:
    return ParsersPlan(
        tools=f"appliance.text.tools.{tools}:{tools.upper()}",
        reasoning=f"appliance.text.reasoning.{reasoning}:{reasoning.upper()}" if reasoning else None,
        auto_tool_choice=True,
    )


def ask(server: Server, *, stream: bool, **options: Any) -> Any:
    with server.openai() as client:
        request: Any = {"model": "scripted", "messages": [{"role": "user", "content": "go"}], **options}
        if not stream:
            return client.chat.completions.create(**request).choices[0]
        with client.chat.completions.stream(**request) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0]


def test_mistral(tmp_path: Path) -> None:
    special = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"]
    answer = [BOS, *tokens(f"[THINK]Hm.[/THINK]Look.[TOOL_CALLS]weather[ARGS]{ARGUMENTS}", special)]
    with serving(tmp_path, special, answer, parsers("mistral", "mistral")) as server:
        for stream in (False, True):
            choice = ask(server, stream=stream, tools=TOOLS)
            (call,) = choice.message.tool_calls
            assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
            assert re.fullmatch("[0-9a-z]{9}", call.id)
            assert choice.message.content == "Look."
            assert choice.message.reasoning_content == "Hm."
        # Without tools the marks of calls are special tokens like any other.
        assert ask(server, stream=False).message.content == f"Look.weather{ARGUMENTS}"
        spelled = ask(server, stream=False, extra_body={"skip_special_tokens": False})
        assert spelled.message.content.startswith("<|begin|>[THINK]")


def test_harmony(tmp_path: Path) -> None:
    special = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"]
    text = (  # <|end|> is the end of sequence in this vocabulary, so another end stands for it
        "<|channel|>analysis<|message|>Hm.<|call|><|start|>assistant<|channel|>commentary<|message|>Look.<|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ARGUMENTS
    )
    with serving(tmp_path, special, tokens(text, special), parsers("gpt_oss", "gpt_oss")) as server:
        for stream in (False, True):
            choice = ask(server, stream=stream, tools=TOOLS)
            (call,) = choice.message.tool_calls
            assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
            assert choice.message.content == "Look."
            assert choice.message.reasoning_content == "Hm."
        without = ask(server, stream=False).message
        assert without.reasoning_content == "Hm."
        assert without.content == f"Look.\n{ARGUMENTS}"


def test_the_plugin_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs/guides/tools.md").read_text()
    code = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[-1]
    (tmp_path / "my_tools").mkdir()
    (tmp_path / "my_tools" / "formats.py").write_text(code)
    path = re.findall(r"tool_parser_plugin: (\S+),", guide)[0]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    answer = encode(f"mail me@x, @weather {ARGUMENTS} done")
    plan = ParsersPlan(tools=path, auto_tool_choice=True)
    with serving(tmp_path, [], answer, plan) as server:
        choice = ask(server, stream=True, tools=TOOLS)
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)
        assert choice.message.content == "mail me@x,  done"


def test_a_missing_plugin_is_told(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, Script(), parsers=ParsersPlan(tools="nowhere.formats:MINE", auto_tool_choice=True))
    server = Server(plan, tmp_path)
    try:
        assert server.process.wait(20) == 1
        assert any("nowhere.formats:MINE" in str(event) for event in server.events())
    finally:
        server.close()
