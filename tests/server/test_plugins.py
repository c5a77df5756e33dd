"""The plug-ins of the guide do what it says, through a server's socket; those that fail cost their own request."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.base.errors import SpecError
from appliance.base.plugins import PluginError, load_plugin
from appliance.engine.scripted import Reply, Script
from appliance.plan.serving_types import ParsersPlan
from appliance.spec import load_text
from appliance.text.output import load_output_format
from tests.server.harness import Server, chat_prompt, encode, running, says, wait_until

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guides/plugins.md").read_text()
FORMATS = "tests.server.own_formats"
EXPORTERS = "tests.server.own_exporters"
HEAD = "api_version: appliance/v1\nkind: Deployment\nname: a\nmodel: {source: hf://owner/model}\n"


def section(title: str) -> str:
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the modules of the guide, where servers find them."""
    files = re.findall(r"`(my_plugins/\w+\.py)`.*?```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(files) >= 4
    (tmp_path / "my_plugins").mkdir()
    for name, code in files:
        (tmp_path / name).write_text(code.replace('"/var/tmp/', f'"{tmp_path}/'))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return tmp_path


def said(title: str) -> dict[str, Any]:
    """The spec of a section of the guide, which is valid."""
    text = re.findall(r"```yaml\n(.*?)```", section(title), re.DOTALL)[-1]
    load_text((HEAD.partition("model:")[0] if "model:" in text else HEAD) + text, "deployment.yaml")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def chat(server: Server, user: str, **more: Any) -> Any:
    body = {"model": "scripted", "messages": [{"role": "user", "content": user}], **more}
    with server.http() as http:
        return http.post("/v1/chat/completions", json=body, timeout=60).json()


def streamed(server: Server, user: str) -> list[str]:
    body = {"model": "scripted", "messages": [{"role": "user", "content": user}], "stream": True}
    with server.http() as http:
        text = http.post("/v1/chat/completions", json=body, timeout=60).text
    return re.findall(r"^data: (.*)$", text, re.MULTILINE)


def test_logits_processors_of_the_guide(written: Path) -> None:
    names = said("Logits processors")["decoding"]["logits_processors"]
    with running(written, Script(replies=[says("go", "hello")]), logits_processors=names) as server:
        with server.http() as http:
            body = {"model": "scripted", "prompt": "ab", "max_tokens": 12, "return_token_ids": True, "ignore_eos": True}
            choice = http.post("/v1/completions", json=body).json()["choices"][0]
            refused = http.post("/v1/completions", json={**body, "use_beam_search": True, "n": 2})
        tokens = choice["token_ids"]
        assert len(tokens) == 12
        assert all(token % 2 == 0 for token in tokens), "only_even"
        assert len({*tokens, *encode("ab")}) == len(tokens) + len(encode("ab")), "NoRepeats, of one sequence"
        assert refused.status_code == 400
        assert "decoding.logits_processors" in refused.json()["error"]["message"]


def test_a_reasoning_format_of_the_guide(written: Path) -> None:
    name = said("Reasoning formats")["decoding"]["reasoning_parser_plugin"]
    script = Script(replies=[says("go", "[thought]Hm.[/thought]Yes.")])
    with running(written, script, parsers=ParsersPlan(reasoning=name)) as server:
        message = chat(server, "go")["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")


def test_a_tokenizer_of_the_guide(written: Path) -> None:
    name = said("Tokenizers")["model"]["tokenizer_cls"]
    reply = Reply([2 + byte for byte in chat_prompt("go").encode()], [2 + byte for byte in "Grüße 😀".encode()])
    plan: dict[str, Any] = {"tokenizer_mode": "custom", "tokenizer_cls": name, "structured": {"backend": None}}
    with running(written, Script(replies=[reply]), **plan) as server, server.http() as http:
        assert chat(server, "go")["choices"][0]["message"]["content"] == "Grüße 😀"
        tokens = http.post("/tokenize", json={"prompt": "a<end>b", "add_special_tokens": False}).json()["tokens"]
        assert tokens == [99, 0, 100]
        refused = chat(server, "go", response_format={"type": "json_object"})
        assert "tokenizer that is not auto" in refused["error"]["message"]


def test_middleware_of_the_guide(written: Path) -> None:
    names = said("Middleware")["endpoints"]["http"]["middleware"]
    with running(written, Script(), middleware=names) as server, server.http() as http:
        answer = http.get("/version")
        assert (answer.status_code, answer.headers["x-stamp"]) == (200, "1")
        assert http.get("/version", headers={"teapot": "1"}).status_code == 418


@pytest.mark.parametrize("api_servers", [1, 2])
def test_an_exporter_of_the_guide(written: Path, api_servers: int) -> None:
    name = said("Exporters of metrics")["observability"]["metrics"]["exporters"][0]
    plan: dict[str, Any] = {
        "exporters": {"names": [f"{EXPORTERS}.Raises", f"{EXPORTERS}.hangs", name], "interval_s": 0.1},
        "api_servers": api_servers,
    }
    with running(written, Script(replies=[says("go", "hello")]), **plan) as server:
        chat(server, "go")

        def has_it() -> bool:
            lines = (written / "figures.jsonl").read_text().splitlines() if (written / "figures.jsonl").exists() else []
            return bool(lines) and json.loads(lines[-1]).get("appliance_request_prompt_tokens_count") == 1

        wait_until(has_it, "the request is exported", 30)
        missed = "a metrics exporter misses figures"  # one that hangs is told at the interval after
        wait_until(lambda: server.log.read_text().count(missed) >= 2, "both faults are told", 30)
        log = server.log.read_text()
        assert log.count(missed) == 2
        assert "LookupError: no exporter" in log
        assert chat(server, "go")["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("name", ["nothing", "NO_EXPORTER", "late", "Needs"])
def test_an_exporter_that_is_none_ends_the_start(tmp_path: Path, name: str) -> None:
    with running(tmp_path, Script(), wait=False, exporters={"names": [f"{EXPORTERS}.{name}"]}) as server:
        assert server.process.wait(30) == 1
        reason = [event for event in server.events() if event["event"] == "failed"][-1]["reason"]
        assert f"observability.metrics.exporters: {EXPORTERS}.{name}" in reason


def test_a_resolver_of_the_guide(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = said("Resolvers of adapters")["lora"]["resolver"]
    monkeypatch.syspath_prepend(str(written))
    found = load_plugin(name, "lora.resolver")
    monkeypatch.setattr(sys.modules["my_plugins.shelf"], "SHELF", written)
    for coroutine, expected in ((found("m", "my_plugins"), str(written / "my_plugins")), (found("m", "../x"), None)):
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        assert ended.value.value == expected


@pytest.mark.parametrize(
    ("word", "reason"), [("ho", "took more than 2 s"), ("ro", "LookupError: a secret of the machine")]
)
def test_a_format_that_fails_costs_its_own_request(tmp_path: Path, word: str, reason: str) -> None:
    script = Script(replies=[says("good", "solid"), Reply(encode(chat_prompt("bad")), encode(word))])
    with running(tmp_path, script, parsers=ParsersPlan(reasoning=f"{FORMATS}:FAULTY")) as server:
        bad = chat(server, "bad")
        assert bad["error"]["type"] == "server_error"
        assert "secret" not in str(bad)
        events = streamed(server, "bad")
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"] == bad["error"], "a stream that has begun says so too"
        assert chat(server, "good")["choices"][0]["message"]["content"] == "solid"
        wait_until(lambda: reason in server.log.read_text(), f"the log does not say {reason!r}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{FORMATS}:NOTHING", "cannot be imported: AttributeError"),
        (f"{FORMATS}:NO_FORMAT", "is no ReasoningFormat"),
        ("no.such.module:X", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_format_that_is_none_is_named(name: str, words: str) -> None:
    with pytest.raises(PluginError, match=words) as error:
        load_output_format(None, name)
    assert f"decoding.reasoning_parser_plugin: {name}" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "model: {source: ./model, tokenizer_mode: custom, tokenizer_cls: never_imported.a.B}",
        "decoding: {tool_parser_plugin: 'never_imported.a:B'}",
        "decoding: {reasoning_parser_plugin: 'never_imported.a:B'}",
        "decoding: {logits_processors: [never_imported.a.B]}",
        "decoding: {logits_processor_pattern: 'never_imported.*'}",
        "endpoints: {http: {middleware: [never_imported.a.B]}}",
        "observability: {metrics: {exporters: [never_imported.a.B]}}",
        "loading: {load_format: custom, loader_cls: never_imported.a.B}",
        "lora: {resolver: never_imported.a.B}",
        "speculative: {method: custom_class, drafter: never_imported.a.B}",
    ],
)
def test_without_trust_nothing_is_imported(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_imported").mkdir()
    (tmp_path / "never_imported" / "a.py").write_text("raise AssertionError('it was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    head = HEAD.partition("model:")[0] if text.startswith("model:") else HEAD
    with pytest.raises(SpecError) as refused:
        load_text(f"{head}{text}\n", "deployment.yaml")
    assert [each.rule for each in refused.value.diagnostics] == ["decoding/plugin"]
    trusted = text.replace("decoding: {", "decoding: {trust_plugins: true, ")
    if trusted == text:
        trusted += "\ndecoding: {trust_plugins: true}"
    load_text(f"{head}{trusted}\n", "deployment.yaml")
    assert not any(name.startswith("never_imported") for name in sys.modules), "reading a spec imports nothing"
