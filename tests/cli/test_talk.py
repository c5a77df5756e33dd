"""chat and complete against a real server with the scripted engine."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ExitCode
from appliance.cli.app import main
from appliance.engine.scripted import Script
from appliance.plan.serving_types import ParsersPlan
from tests.server.harness import Server, continues, running, says

REPLIES = [says("greet", "hello world"), says("greet me", "hello world"), continues("Say: ", "hello world")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("talk"), Script(replies=REPLIES)) as server:
        yield server


def test_one_question(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", server.url, "-q", "greet"]) == 0
    assert capsys.readouterr().out == "hello world\n"


def test_the_question_may_stand_alone(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "greet me", "--url", server.url]) == 0
    assert main(["chat", "any-name", "greet", "--url", server.url]) == 0
    assert capsys.readouterr().out == "hello world\n" * 2
    assert main(["chat", "any-name", "greet", "-q", "greet", "--url", server.url]) == ExitCode.INVALID
    assert "given twice" in capsys.readouterr().err


def test_the_curl_line_asks_the_same(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", f"{server.url}/v1", "-q", "greet", "--curl", "--max-tokens", "2"]) == 0
    answer, _, curl = capsys.readouterr().out.splitlines()
    assert answer == "hello "
    assert curl.startswith(f"curl -N {server.url}/v1/chat/completions ")
    assert '"max_tokens":2' in curl


def test_a_conversation(server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("greet\n\n"))
    assert main(["chat", "--url", server.url]) == 0
    assert capsys.readouterr().out == "hello world\n"


def test_a_text_goes_on(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--url", server.url, "-q", "Say: ", "--temperature", "0", "--max-tokens", "20"]) == 0
    assert capsys.readouterr().out == "hello world\n"


def test_a_refusal_is_told(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", server.url, "--model", "nonsense", "-q", "greet"]) == 1
    assert "the server answers 404: the model 'nonsense' does not exist" in capsys.readouterr().err


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:9", "-q", "greet"]) == 1
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err


def test_thoughts_are_shown_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(replies=[says("greet", "<think>a hello</think>hello world")])
    with running(tmp_path, script, parsers=ParsersPlan(reasoning="appliance.text.reasoning.qwen3:QWEN3")) as server:
        assert main(["chat", "--url", server.url, "-q", "greet"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("hello world\n", "a hello")
