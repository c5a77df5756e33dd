"""Every spec in broken/ and warned/ says in its head which rule is broken where; nothing else may be found."""

import json
import re
from pathlib import Path

import pytest

from appliance.base.diagnostics import Diagnostic, Severity
from appliance.base.errors import SpecError
from appliance.catalog.rules import PLANNING, SUMMARIES
from appliance.cli import validate
from appliance.cli.arguments.spec import DiagnosticsForm, ValidateArguments
from appliance.spec import load_spec

HERE = Path(__file__).parent
BROKEN = sorted((HERE / "broken").glob("*.yaml"))
WARNED = sorted((HERE / "warned").glob("*.yaml"))
EXPECTED = re.compile(r"^# expect: (\S+) (\d+):(\d+)$", re.MULTILINE)
TESTED_ELSEWHERE = {
    *("file/read", "file/encoding", "yaml/too-large", "yaml/too-deep", "yaml/too-many", "spec/too-many"),
    *("override/form", "override/path", "override/refused"),
    *("include/form", "include/read", "include/outside", "include/cycle", "include/too-many"),
}


def expected(file: Path) -> list[tuple[str, int, int]]:
    return [(rule, int(line), int(column)) for rule, line, column in EXPECTED.findall(file.read_text())]


def places(found: tuple[Diagnostic, ...]) -> list[tuple[str, int, int]]:
    return [(each.rule, each.line, each.column) for each in found]


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_broken(file: Path) -> None:
    with pytest.raises(SpecError) as raised:
        load_spec(file, environ={})
    found = raised.value.diagnostics
    assert sorted(places(found)) == sorted(expected(file))
    for each in found:
        assert each.file == str(file)
        assert each.hint, "a hint says what to do"
        assert each.severity is Severity.ERROR
        assert each.message[0] != " "


@pytest.mark.parametrize("file", WARNED, ids=lambda file: file.stem)
def test_warned(file: Path) -> None:
    loaded = load_spec(file, environ={})
    assert sorted(places(loaded.warnings)) == sorted(expected(file))
    assert all(each.severity is Severity.WARNING and each.hint for each in loaded.warnings)


def test_every_rule_is_broken_somewhere() -> None:
    used = {rule for file in [*BROKEN, *WARNED] for rule, _, _ in expected(file)}
    assert used | TESTED_ELSEWHERE == set(SUMMARIES) - set(PLANNING)
    assert len(BROKEN) >= 60


@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_validate_the_folder(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.run(ValidateArguments(paths=(str(HERE / "broken"),), form=DiagnosticsForm(form))) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    for file in BROKEN:
        assert file.name in printed.out
    if form == "json":
        body = json.loads(printed.out)
        assert body["errors"] == sum(len(expected(file)) for file in BROKEN)


def test_validate_warnings_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.run(ValidateArguments(paths=(str(HERE / "warned"),))) == 0
    assert "warning" in capsys.readouterr().out
