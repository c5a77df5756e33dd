"""Hostile files: too large, too deep, too many, not text, and random bytes."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.base.diagnostics import Diagnostic
from appliance.base.errors import SpecError
from appliance.spec import load_spec, load_text

BASE = "api_version: appliance/v1\nkind: Deployment\nname: small\nmodel: {source: x}\n"


def rule_of(text: str) -> str:
    with pytest.raises(SpecError) as raised:
        load_text(text, environ={})
    return raised.value.diagnostics[0].rule


def laughs(levels: int = 12) -> str:
    lines = ["x-a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"x-a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return BASE + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (BASE + "x-deep: " + "[" * 100_000, "yaml/too-deep"),
        (BASE + "x-deep: " + "{a: " * 50_000, "yaml/too-deep"),
        (BASE + "x-deep: " + "{[" * 50_000, "yaml/too-deep"),
        (laughs(), "yaml/too-many"),
        (BASE + "x-many: [" + "1," * 60_000 + "]", "yaml/too-many"),
        (BASE + "x-large: " + "a" * (1 << 20), "yaml/too-large"),
        (BASE + "model: {max_model_len: " + "9" * 5000 + "}\n", "yaml/duplicate-key"),
    ],
    ids=["sequences", "mappings", "keys", "aliases", "items", "bytes", "digits"],
)
def test_bounded(text: str, rule: str) -> None:
    assert rule_of(text) == rule


def test_long_digits_are_no_number() -> None:
    assert rule_of(BASE.replace("{source: x}", "{source: x, max_model_len: " + "9" * 5000 + "}")) == "value/format"


def test_unreadable_files(tmp_path: Path) -> None:
    wrong = [("bad.yaml", b"name: a\nx: \xff"), ("wide.yaml", "name: a".encode("utf-16"))]
    cases = [*((name, content, "file/encoding") for name, content in wrong), ("none.yaml", None, "file/read")]
    for name, content, rule in cases:
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(SpecError) as raised:
            load_spec(file, environ={})
        assert [found.rule for found in raised.value.diagnostics] == [rule]
    assert (raised.value.diagnostics[0].line, raised.value.diagnostics[0].column) == (1, 1)


def test_encoding_is_located(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"name: a\nx: \xff")
    with pytest.raises(SpecError) as raised:
        load_spec(file, environ={})
    assert (raised.value.diagnostics[0].line, raised.value.diagnostics[0].column) == (2, 4)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load_spec(file, environ={}).spec.name == "small"


def test_large_interpolated_file(tmp_path: Path) -> None:
    (tmp_path / "big").write_text("a" * 70_000)
    (tmp_path / "spec.yaml").write_text(BASE + "description: ${file:big}\n")
    with pytest.raises(SpecError, match="larger than"):
        load_spec(tmp_path / "spec.yaml", environ={})


@pytest.mark.parametrize("line", ["key_{}: 1\n", "key: {}\n", "cache: {{key_{}: 1}}\n"])
def test_thousands_of_errors_are_counted(line: str) -> None:
    text = BASE + "".join(line.format(number) for number in range(10_000))
    found = diagnostics_of(text)
    assert 200 <= len(found) <= 203
    assert any(each.rule == "spec/too-many" and "more errors" in each.message for each in found)


def diagnostics_of(text: str) -> tuple[Diagnostic, ...]:
    try:
        return load_text(text, environ={}).warnings
    except SpecError as error:
        return error.diagnostics


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from([*re.split(r"(\W)", BASE), "\t", "- ", "*a", "&a ", "? ", "${"])).map("".join),
    )
)
def test_any_text_gives_a_spec_or_diagnostics(text: str) -> None:
    assert all(found.line >= 1 and found.column >= 1 and found.message for found in diagnostics_of(text))
