"""Records of arguments: what a verb takes is spelled once, and its work gets it whole and typed."""

import inspect
from typing import Annotated

import pytest
import typer

from appliance.cli.app import main
from appliance.cli.arguments.record import VerbArguments, fields_of, signature_of
from appliance.cli.verb import group, verb


class Base(VerbArguments):
    name: Annotated[str, typer.Argument()]
    changes: Annotated[tuple[str, ...], typer.Option("--with")] = ()


class Record(Base):
    count: Annotated[int, typer.Option()] = 3


def test_a_record_is_parsed_and_passed_on() -> None:
    seen: list[Record] = []
    app = group("test", "A test.")

    @verb(app, "do", "test do it")
    def do(arguments: Record) -> int:
        """Do it."""
        seen.append(arguments)
        return arguments.count

    @verb(app, "other", "test other")
    def other(flag: Annotated[bool, typer.Option("--flag")] = False) -> int:
        """Another."""
        return int(flag)

    for line, code in ((["do", "it", "--with", "a=1", "--with", "b=2", "--count", "5"], 5), (["do", "it"], 3)):
        with pytest.raises(SystemExit) as ended:
            app(args=line)
        assert ended.value.code == code
    assert [(each.name, each.changes, each.count) for each in seen] == [("it", ("a=1", "b=2"), 5), ("it", (), 3)]
    with pytest.raises(SystemExit) as ended:
        app(args=["do"])
    assert ended.value.code == 2


def test_a_record_is_whole_and_cannot_be_changed() -> None:
    assert [name for name, _ in fields_of(Record)] == ["name", "changes", "count"]
    assert signature_of(Record).parameters["name"].default is inspect.Parameter.empty
    record = Record(name="a")
    with pytest.raises(AttributeError, match="cannot be set"):
        record.__setattr__("name", "b")
    for given in ({}, {"name": "a", "colour": 1}):
        with pytest.raises(TypeError):
            Record(**given)


def test_help_has_a_short_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-h"]) == 0
    assert "Example: appliance plan" in capsys.readouterr().out
