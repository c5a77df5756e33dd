"""Digests, the environment, logs."""

import io
import json
import logging

import pytest

from appliance.base import environ, hashing, log


def test_canonical_json_ignores_order() -> None:
    assert hashing.sha256_json({"b": 1, "a": [True, None]}) == hashing.sha256_json({"a": [True, None], "b": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        hashing.canonical_json(float("nan"))


def test_keys_are_kept_as_their_digest() -> None:
    assert hashing.key_hash("sk-1") == "sha256:" + hashing.sha256_hex(b"sk-1")
    assert hashing.key_hash("sk-1") != hashing.key_hash("sk-2")


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPLIANCE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert str(environ.cache_dir()) == "/c/appliance"
    monkeypatch.setenv("APPLIANCE_CACHE", "/mine")
    assert str(environ.cache_dir()) == "/mine"
    assert environ.with_changes(A="1")["A"] == "1"


@pytest.fixture
def quiet_root() -> object:
    root = logging.getLogger("appliance")
    before = (root.handlers[:], root.level, root.propagate)
    yield root
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


@pytest.mark.usefixtures("quiet_root")
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_value_forges_a_line(form: log.LogFormat) -> None:
    stream = io.StringIO()
    log.configure("info", form, stream)
    log.logger("test").info("name \x1b[31m\nfake: line", extra=log.fields(prompt="a\nb", count=3))
    log.logger("test").debug("hidden")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    if form == "json":
        body = json.loads(text)
        assert (body["prompt"], body["count"], body["area"]) == ("a\nb", 3, "test")
