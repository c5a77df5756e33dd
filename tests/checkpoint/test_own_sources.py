"""Sources of other schemes, which code of the operator's own finds."""

import sys
from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.base.plugins import PluginError
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.sources.options import FetchOptions
from appliance.checkpoint.sources.resolve import resolve_source
from appliance.plan.prepare import prepare
from tests.checkpoint import own_sources
from tests.models.tiny import make_tiny

HERE = "tests.checkpoint.own_sources."


def options(name: str = "find", *, offline: bool = False) -> FetchOptions:
    return FetchOptions(resolver=HERE + name, offline=offline)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_sources, "SHELF", tmp_path)
    monkeypatch.setattr(own_sources, "ASKED", [])
    return tmp_path


def test_a_source_is_found(shelf: Path) -> None:
    (shelf / "model").mkdir()
    assert resolve_source("corp://model", options=options()) == shelf / "model"
    assert resolve_source("corp://missing", ("corp://model",), options=options()) == shelf / "model"
    with pytest.raises(CheckpointError, match="has found nothing"):
        resolve_source("corp://missing", options=options())


def test_the_digest_decides(shelf: Path) -> None:
    (shelf / "model.gguf").write_bytes(b"other bytes")
    with pytest.raises(CheckpointError, match="has sha256"):
        resolve_source("corp://model.gguf", sha256="0" * 64, options=options())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", "failed: LookupError: no idea"),
        ("says_a_number", "failed: TypeError"),
        ("says_a_relative_path", "no absolute path"),
        ("says_a_missing_path", "no absolute path"),
    ],
)
def test_one_that_fails_is_named(name: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as error:
        resolve_source("corp://model", options=options(name))
    assert HERE + name in str(error.value)


@pytest.mark.parametrize("name", ["NOT_A_FUNCTION", "missing"])
def test_what_is_no_resolver_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match=r"model\.resolver"):
        resolve_source("corp://model", options=options(name))


def test_other_sources_are_not_its_business(shelf: Path) -> None:
    (shelf / "model").mkdir()
    assert resolve_source(str(shelf / "model"), options=options("fails")) == shelf / "model"
    with pytest.raises(CheckpointError, match=r"scheme 'corp' is not known"):
        resolve_source("corp://model")


SPEC = """\
api_version: appliance/v1
kind: Deployment
name: own
model: {source: corp://far-tiny, resolver: %s}
decoding: {trust_plugins: %s}
"""


def test_a_spec_is_planned_from_it_and_may_fetch(shelf: Path) -> None:
    make_tiny("llama", shelf / "far-tiny")
    spec = shelf / "own.yaml"
    spec.write_text(SPEC % (HERE + "find", "true"))
    planned = prepare(spec, ("model.skip_tokenizer_init=true",)).plan
    assert planned.model.path == str(shelf / "far-tiny")
    assert own_sources.ASKED == [("corp://far-tiny", True), ("corp://far-tiny", False)]
    own_sources.ASKED.clear()
    with pytest.raises(CheckpointError, match="has found nothing"):
        prepare(spec, ("model.skip_tokenizer_init=true", "loading.offline=true"))
    assert own_sources.ASKED == [("corp://far-tiny", True)]


def test_nothing_is_imported_without_trust(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shelf / "untrusted_resolver.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(shelf)
    spec = shelf / "own.yaml"
    spec.write_text(SPEC % ("untrusted_resolver.find", "false"))
    with pytest.raises(SpecError, match="trust_plugins"):
        prepare(spec)
    assert "untrusted_resolver" not in sys.modules
