"""How findings are printed."""

import json

from appliance.base.diagnostics import Diagnostic, Severity, render_github, render_json, render_text
from appliance.base.errors import ExitCode, FitError, SpecError

FOUND = Diagnostic(
    rule="value/choice",
    message="cache.block_size cannot be 24",
    path="cache.block_size",
    file="a,b.yaml",
    line=3,
    column=15,
    value=24,
    allowed="16 or 32",
    hint="100% sure:\nwrite 16",
    source_line="  block_size:\x1b[2J 24",
)


def test_text_points_at_the_column() -> None:
    lines = render_text([FOUND]).splitlines()
    assert lines[0] == "a,b.yaml:3:15: error: cache.block_size cannot be 24 [value/choice]"
    assert lines[2].index("^") - len("    3 | ") == 14
    assert "\x1b" not in lines[1]


def test_long_lines_keep_the_caret_in_sight() -> None:
    found = Diagnostic(rule="r", message="m", line=1, column=5000, source_line="x" * 4999 + "!" + "y" * 5000)
    shown, caret = render_text([found]).splitlines()[1:3]
    assert shown[caret.index("^")] == "!"
    assert len(shown) < 120


def test_github_escapes() -> None:
    text = render_github([FOUND])
    assert text.startswith("::error file=a%2Cb.yaml,line=3,col=15,title=value/choice::")
    assert "\n" not in text
    assert "100%25 sure:%0Awrite 16" in text


def test_json_counts() -> None:
    warning = Diagnostic(rule="r", message="m", severity=Severity.WARNING)
    body = json.loads(render_json([FOUND, warning]))
    assert (body["errors"], body["warnings"]) == (1, 1)
    assert body["diagnostics"][0]["line"] == 3
    assert set(body["diagnostics"][1]) == set(body["diagnostics"][0])


def test_errors_carry_exit_codes() -> None:
    assert SpecError([FOUND]).exit_code is ExitCode.INVALID
    assert FitError([FOUND]).exit_code is ExitCode.DOES_NOT_FIT
    assert str(SpecError([FOUND, FOUND])).endswith("(and 1 more)")
    assert "^" in SpecError([FOUND]).report()
