"""The command line: exit codes, help with examples, errors in words."""

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from appliance import __version__
from appliance.base.errors import ApplianceError, ApplyError, ExitCode
from appliance.cli.app import main
from appliance.cli.commands import build
from appliance.cli.other_words import hint_for
from appliance.cli.verb import guarded

GROUPS = {
    "bench": ("latency", "throughput", "serve", "embed", "scaling", "compare", "report"),
    "keys": ("new", "revoke", "list"),
    "profile": ("list", "show"),
    "ranks": ("join",),
}
VERBS = (
    *("validate", "explain", "schema", "init", "audit", "lock", "plan", "pull", "shard", "doctor"),
    *("apply", "diff", "drift", "history", "rollback", "status", "logs", "down"),
    *("batch", "chat", "complete", "render", "import", "serialize", "completion", "tune"),
)
COMMANDS = [(verb,) for verb in VERBS] + [(group, verb) for group, verbs in GROUPS.items() for verb in verbs]


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"appliance {__version__}\n"


def test_every_verb_is_in_the_table_and_no_other() -> None:
    app = build()
    assert {command.name for command in app.registered_commands} == set(VERBS)
    assert {group.name for group in app.registered_groups} == set(GROUPS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_names_the_verb(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert f"Example: appliance {' '.join(command)}" in " ".join(capsys.readouterr().out.split())


def leaves(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the real command line, with its words. typer brings its own click, so nothing is typed here."""
    if hasattr(found, "commands"):
        for name, child in found.commands.items():
            yield from leaves(child, (*path, name))
    else:
        yield path, found


def test_the_examples_of_the_help_are_command_lines_that_parse() -> None:
    """Words, options and choices are checked; the part after a pipe or a redirection is the shell's."""
    seen = set()
    for path, found in leaves(typer.main.get_command(build())):
        words = shlex.split((found.epilog or "").removeprefix("Example: "), comments=True)
        end = next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), len(words))
        begin = words.index("appliance") + 1
        assert tuple(words[begin : begin + len(path)]) == path
        found.make_context(path[-1], words[begin + len(path) : end])
        seen.add(path)
    assert seen == set(COMMANDS)


def test_every_verb_answers_with_the_codes_of_the_page() -> None:
    """All of them are made by `verb`, whose guard gives each error its code; the page lists the codes."""
    for path, found in leaves(typer.main.get_command(build())):
        assert found.callback is not None, path
        assert guarded.__name__ in inspect.unwrap(found.callback, stop=is_guarded).__code__.co_names, path
    page = " ".join(PAGE.read_text().split())
    codes = page[page.index("Exit codes:") :].split("|")[0]
    assert {int(code) for code in re.findall(r"\b(\d)\b", codes)} == {int(code) for code in ExitCode}


def is_guarded(function: Any) -> bool:
    return guarded.__name__ in function.__code__.co_names


ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "commands.md"
WITHOUT_JSON = {
    "schema": "prints JSON as it is",
    "completion": "prints a script",
    "init": "writes a file",
    "logs": "prints lines as they were written",
    "down": "says how it ended; the exit code is the answer",
    "chat": "is a conversation; the HTTP API is for programs",
    "complete": "is a conversation; the HTTP API is for programs",
    "keys new": "prints the key alone",
    "keys revoke": "prints nothing",
    "ranks join": "runs until it is told to end",
    "bench": "-o writes the result as JSON",
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_verb_has_json_or_a_reason_and_a_line_on_the_page(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name = " ".join(command)
    main([*command, "--help"])
    has_json = "--json" in capsys.readouterr().out
    assert has_json or name in WITHOUT_JSON or command[0] in WITHOUT_JSON
    assert f"`{name}`" in PAGE.read_text(), f"docs/guides/commands.md has no line for {name}"


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: appliance" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["vaildate"], ["validate"], ["validate", "--nonsense"], ["--nonsense"]])
def test_a_wrong_command_line_is_invalid(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(wrong) == ExitCode.INVALID
    assert "Error" in capsys.readouterr().err


def test_a_mistyped_verb_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["vaildate"])
    assert "Did you mean 'validate'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "ours"),
    [("serve", "apply"), ("run", "apply"), ("stop", "down"), ("rm", "down"), ("ps", "status"), ("restart", "down")],
)
def test_words_of_other_tools_name_our_verb(word: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word, "x"]) == ExitCode.INVALID
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: no command '{word}'\n  hint: `appliance {ours}")


def test_no_hint_hides_a_verb() -> None:
    assert not [each for each in (*VERBS, *GROUPS) if hint_for(each) is not None]


def test_help_and_version_are_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "chat"]) == 0
    assert "Usage: appliance chat" in capsys.readouterr().out
    assert main(["help"]) == 0
    assert "Usage: appliance" in capsys.readouterr().out
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("appliance ")


def raising(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ApplianceError("it broke", hint="mend it"), ExitCode.INTERNAL, "error: it broke\n  hint: mend it\n"),
        (ApplyError("not ready"), ExitCode.APPLY_FAILED, "error: not ready\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ZeroDivisionError("oops"), ExitCode.INTERNAL, "error: ZeroDivisionError: oops\n  hint: APPLIANCE_DEBUG=1"),
    ],
)
def test_errors_are_words_and_codes(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APPLIANCE_DEBUG", raising=False)
    assert guarded(lambda: raising(error)) == code
    printed = capsys.readouterr().err
    assert printed.startswith(words)
    assert "Traceback" not in printed


def test_a_traceback_is_there_for_who_asks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_DEBUG", "1")
    guarded(lambda: raising(ZeroDivisionError("oops")))
    assert "Traceback" in capsys.readouterr().err


def test_a_verb_s_answer_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Nonsense\n")
    assert main(["validate", str(tmp_path / "bad.yaml")]) == ExitCode.INVALID
    assert main(["explain", "cache.block_size"]) == ExitCode.OK
    assert "block" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["status", "logs", "down", "chat"])
def test_where_nothing_is_deployed(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path))
    code = main([verb])
    printed = capsys.readouterr()
    assert "nothing is deployed on this machine" in printed.out + printed.err
    assert code == (ExitCode.OK if verb == "status" else ExitCode.INTERNAL)


def test_a_strange_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "../../etc"]) == ExitCode.INTERNAL
    assert "is no deployment's name" in capsys.readouterr().err
