"""`include`: merging, provenance, findings in the right file, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.diagnostics import Diagnostic
from appliance.base.errors import SpecError
from appliance.cli.app import main
from appliance.spec import load_spec, load_text
from appliance.spec.compose import MAX_FILES, dump_yaml, written_text
from appliance.spec.document import build
from appliance.spec.nodes import parse
from appliance.spec.resolved import render_resolved

BASE = """\
api_version: appliance/v1
kind: Deployment
name: small
model:
  source: hf://owner/model
  served_names: [a, b]
cache: {block_size: 16, dtype: bfloat16}
endpoints: {http: {port: "${env:PORT}"}}
observability: {logs: {max_log_len: 10}}
"""


def write(folder: Path, **texts: str) -> Path:
    """Files by name, `__` for a folder; answers prod.yaml."""
    for name, text in {"base": BASE, **texts}.items():
        file = folder / (name.replace("__", "/") + ".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "prod.yaml"


def wrong(file: Path, *overrides: str) -> list[tuple[str, str, int, int]]:
    with pytest.raises(SpecError) as raised:
        load_spec(file, overrides, environ={"PORT": "9000"})
    found: tuple[Diagnostic, ...] = raised.value.diagnostics
    assert all(each.hint for each in found)
    return [(each.rule, str(Path(each.file).name), each.line, each.column) for each in found]


def test_mappings_are_merged_and_everything_else_is_replaced(tmp_path: Path) -> None:
    over = "include: [base.yaml]\nmodel: {served_names: [c]}\ncache: {block_size: 32}\n"
    spec = load_spec(write(tmp_path, prod=over), environ={"PORT": "9000"}).spec
    assert (spec.model.source, spec.model.served_names) == ("hf://owner/model", ["c"])
    assert (spec.cache.block_size, spec.cache.dtype) == (32, "bfloat16")
    assert spec.endpoints.http.port == 9000
    assert spec.include == []


def test_null_takes_a_value_away_unless_the_field_takes_null(tmp_path: Path) -> None:
    over = "include: [base.yaml]\ncache: {dtype: null, block_size: ~}\nobservability: {logs: {max_log_len: null}}\n"
    loaded = load_spec(write(tmp_path, prod=over), environ={"PORT": "1"})
    assert (loaded.spec.cache.dtype, loaded.spec.cache.block_size) == ("auto", "auto")
    assert not loaded.is_set("cache.dtype")
    assert loaded.spec.observability.logs.max_log_len is None


def test_the_order_is_that_of_the_list_and_a_file_is_laid_once(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        prod="include: [parts/a.yaml, parts/b.yaml]\nname: c\n",
        parts__a="include: [common.yaml]\nscheduler: {max_num_seqs: 1}\ndescription: a\n",
        parts__b="include: [./common.yaml, ../base.yaml]\ndescription: b\n",
        parts__common="scheduler: {max_num_seqs: 9}\n",
    )
    loaded = load_spec(file, environ={"PORT": "1"})
    assert (loaded.spec.description, loaded.spec.scheduler.max_num_seqs, loaded.spec.name) == ("b", 1, "c")
    assert [Path(each.name).name for each in loaded.files] == [
        "common.yaml",
        "a.yaml",
        "base.yaml",
        "b.yaml",
        "prod.yaml",
    ]


def test_findings_are_in_the_file_that_wrote_the_value(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        prod="include: [parts/a.yaml, base.yaml]\nslo: {ttft_p95: 2}\n",
        parts__a="cache:\n  block_size: 16\n  blok: 3\nscheduler: {max_num_seqs: many, policy: fcfs, policy: x}\n",
    )
    assert wrong(file) == [
        ("spec/unknown-key", "a.yaml", 3, 3),
        ("value/type", "a.yaml", 4, 27),
        ("yaml/duplicate-key", "a.yaml", 4, 47),
        ("value/format", "prod.yaml", 2, 17),
    ]


def test_what_is_replaced_can_no_longer_be_wrong(tmp_path: Path) -> None:
    file = write(tmp_path, prod="include: [base.yaml, a.yaml]\ndescription: x\n", a="description: ${env:NOT_SET}\n")
    assert load_spec(file, environ={"PORT": "1"}).value("description") == "x"


def test_provenance(tmp_path: Path) -> None:
    file = write(tmp_path, prod="include: [base.yaml]\ncache: {block_size: 32}\n")
    environ = {"PORT": "9000", "APPLIANCE__SEED": "1", "APPLIANCE__NAME": "x"}
    environ.pop("APPLIANCE__SEED")
    loaded = load_spec(file, ["scheduler.max_num_seqs=4"], environ)
    assert loaded.origin("cache.block_size") == f"{file}:2:21"
    assert loaded.origin("cache.dtype") == f"{tmp_path}/base.yaml:7:32"
    assert loaded.origin("scheduler.max_num_seqs") == "--set scheduler.max_num_seqs"
    assert loaded.origin("name") == "APPLIANCE__NAME"
    assert loaded.origin("seed") == "default"


def test_the_resolved_spec_is_a_spec_and_masks_what_came_from_outside(tmp_path: Path) -> None:
    over = "include: [base.yaml]\nloading: {hf_token: plain-secret}\nslo: {ttft_p95: 2s}\ndescription: '${env:WORD}'\n"
    loaded = load_spec(write(tmp_path, prod=over), environ={"PORT": "9000", "WORD": "hush"})
    text = render_resolved(loaded, explain=True)
    assert "hush" not in text
    assert "plain-secret" not in text
    assert "9000" not in text
    again = load_text(text, overrides=["endpoints.http.port=9000"], environ={})
    resolved = loaded.resolved()
    resolved["endpoints"]["http"]["port"] = 9000
    assert again.resolved() == resolved
    assert f"# {tmp_path}/base.yaml:5:11" in text
    assert "ttft_p95: " in text
    assert "include:" not in text


def test_the_written_text_is_one_spec_with_its_references(tmp_path: Path) -> None:
    over = 'include: [base.yaml]\ndescription: "0o17"\nx-note: "a\\nb: ${env:PORT}"\nslo: {ttft_p95: 2s}\n'
    file = write(tmp_path, prod=over)
    loaded = load_spec(file, environ={"PORT": "9000"})
    assert loaded.text == written_text(file)
    assert "${env:PORT}" in loaded.text
    assert "9000" not in loaded.text
    again = load_text(loaded.text, environ={"PORT": "9000"})
    assert again.resolved() == loaded.resolved()
    assert again.sha256 == loaded.sha256


def test_a_spec_without_includes_keeps_its_text(tmp_path: Path) -> None:
    write(tmp_path)
    assert written_text(tmp_path / "base.yaml") == BASE


def test_cycles_are_refused_where_they_close(tmp_path: Path) -> None:
    file = write(
        tmp_path, prod="include: [a.yaml]\n", a="include:\n  - base.yaml\n  - b.yaml\n", b="include: [a.yaml]\n"
    )
    assert wrong(file) == [("include/cycle", "b.yaml", 1, 11)]
    assert wrong(write(tmp_path, prod="include: [prod.yaml]\n")) == [("include/cycle", "prod.yaml", 1, 11)]


@pytest.mark.parametrize(
    "path", ["../outside.yaml", "/etc/hostname", "parts/../../outside.yaml", "link.yaml", "out/x.yaml"]
)
def test_nothing_outside_the_folder_is_read(tmp_path: Path, path: str) -> None:
    home = tmp_path / "home"
    file = write(home, prod=f"include: [{path}]\n")
    (tmp_path / "outside.yaml").write_text(BASE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.yaml").write_text(BASE)
    (home / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (home / "out").symlink_to(tmp_path / "elsewhere")
    assert wrong(file) == [("include/outside", "prod.yaml", 1, 11)]


@pytest.mark.parametrize("text", ["base.yaml", "[[base.yaml]]", "[3]", '["${env:PORT}.yaml"]', "[{a: b}]", "[null]"])
def test_an_include_is_a_list_of_plain_paths(tmp_path: Path, text: str) -> None:
    assert [each[:2] for each in wrong(write(tmp_path, prod=f"include: {text}\n"))] == [("include/form", "prod.yaml")]


@pytest.mark.parametrize(
    ("version", "hint"), [("v2", "a newer one may read it"), ("v1alpha1", "write appliance/v1"), ("v12beta3", "newer")]
)
def test_another_version_is_refused_in_every_file(tmp_path: Path, version: str, hint: str) -> None:
    file = write(tmp_path, prod="include: [a.yaml, base.yaml]\nnonsense: 1\n", a=f"api_version: appliance/{version}\n")
    with pytest.raises(SpecError) as raised:
        load_spec(file, environ={"PORT": "9000"})
    [found] = raised.value.diagnostics
    assert (found.rule, Path(found.file).name, found.line, found.column) == ("spec/version", "a.yaml", 1, 14)
    assert hint in found.hint


def test_files_that_cannot_be_included(tmp_path: Path) -> None:
    assert wrong(write(tmp_path, prod="include: [none.yaml]\n")) == [("include/read", "prod.yaml", 1, 11)]
    assert wrong(write(tmp_path, prod="include: [a.yaml]\n", a="\tx: 1")) == [("yaml/syntax", "a.yaml", 1, 1)]
    assert wrong(write(tmp_path, prod="include: [a.yaml]\n", a="- x")) == [("spec/not-a-mapping", "a.yaml", 1, 1)]
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    assert [each[:2] for each in wrong(tmp_path / "prod.yaml")] == [("file/encoding", "a.yaml")]


def test_only_so_many_files(tmp_path: Path) -> None:
    names = [f"f{index}" for index in range(MAX_FILES)]
    file = write(
        tmp_path, prod=f"include: [{', '.join(name + '.yaml' for name in names)}]\n", **dict.fromkeys(names, "")
    )
    assert [each[0] for each in wrong(file)] == ["include/too-many"]


def test_an_override_comes_too_late_to_include(tmp_path: Path) -> None:
    file = write(tmp_path, prod="include: [base.yaml]\n")
    assert wrong(file, "include=[other.yaml]") == [("override/refused", "--set include", 1, 1)]


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    file = str(write(tmp_path, prod="include: [base.yaml]\n"))
    assert main(["render", file, "--resolved", "--explain"]) == 0
    assert "served_names: [" in capsys.readouterr().out
    assert main(["render", file, "--resolved", "--explain", "--json"]) == 0
    assert '"path": "cache.block_size", "value": 16' in capsys.readouterr().out
    assert main(["render", file, "--resolved", "--to", "compose"]) == 2
    assert main(["render", file]) == 2
    assert "give one of --to and --resolved" in capsys.readouterr().err


def test_a_folder_s_parts_are_checked_with_what_includes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "9000")
    write(tmp_path, prod="include: [base.yaml, parts/a.yaml]\n", parts__a="cache: {block_size: 24}\n")
    assert main(["validate", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "a.yaml:1:21: error" in printed
    assert printed.endswith("1 error\n")


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12) | st.sampled_from(
    [
        "0o17",
        "yes",
        "1e5",
        "-.inf",
        "~",
        "2026-01-01",
        "a\nb",
        "a \n",
        "\n",
        " a",
        "a: b",
        "# a",
        "${env:A}",
        "$${x}",
        "1_0",
        "&a",
    ]
)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS.filter(lambda key: key != "<<"), VALUES, max_size=4))
def test_what_is_dumped_reads_back_the_same(data: dict[str, object]) -> None:
    root = parse(dump_yaml(data))
    assert root is not None
    assert build(root, lambda text: text).data == data
