"""The process's own settings: what each takes, and what a wrong one says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base import environ
from appliance.base.settings import Settings, SettingsError, described, read_settings
from appliance.cli.app import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "environment.md"
VARIABLES = [str(field.validation_alias) for field in Settings.model_fields.values()]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_an_empty_environment_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    found = read_settings()
    assert (str(found.state), str(found.cache)) == (
        "/home/someone/.local/state/appliance",
        "/home/someone/.cache/appliance",
    )
    assert (found.debug, found.log_level, found.log_format) == (False, "warning", "text")
    assert (found.api_key, found.hub_token, found.hub_endpoint) == (None, None, None)


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("APPLIANCE_DEBUG", "1", "debug", "True"),
        ("APPLIANCE_DEBUG", "0", "debug", "False"),
        ("APPLIANCE_DEBUG", "no", "debug", "False"),
        ("APPLIANCE_LOG_LEVEL", "debug", "log_level", "debug"),
        ("APPLIANCE_LOG_FORMAT", "json", "log_format", "json"),
        ("HF_ENDPOINT", "http://hub.example:8080", "hub_endpoint", "http://hub.example:8080/"),
        ("APPLIANCE_STATE", "~/state", "state", "/home/someone/state"),
        ("APPLIANCE_CACHE", "/not/there/yet", "cache", "/not/there/yet"),
    ],
)
def test_values_are_read(variable: str, value: str, field: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv(variable, value)
    assert str(getattr(read_settings(), field)) == expected


@pytest.mark.parametrize(
    ("variable", "value", "takes"),
    [
        ("APPLIANCE_LOG_LEVEL", "loud", "debug, info, warning or error"),
        ("APPLIANCE_LOG_FORMAT", "xml", "text or json"),
        ("APPLIANCE_DEBUG", "maybe", "true or false"),
        ("HF_ENDPOINT", "hub.example", "an address that begins with http:// or https://"),
        ("APPLIANCE_STATE", __file__, "a folder, which need not be there yet"),
        ("APPLIANCE_CACHE", __file__, "a folder, which need not be there yet"),
    ],
)
def test_a_wrong_value_is_one_sentence(variable: str, value: str, takes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as raised:
        read_settings()
    assert str(raised.value) == f"{variable} is {value!r}, and takes {takes}"


def test_every_wrong_value_is_told_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_LOG_LEVEL", "loud")
    monkeypatch.setenv("APPLIANCE_DEBUG", "maybe")
    monkeypatch.setenv("APPLIANCE_API_KEY", "sk-secret")
    with pytest.raises(SettingsError) as raised:
        read_settings()
    assert str(raised.value).count("and takes") == 2
    monkeypatch.delenv("APPLIANCE_LOG_LEVEL")
    monkeypatch.delenv("APPLIANCE_DEBUG")
    assert "sk-secret" not in repr(read_settings())


@pytest.mark.parametrize(
    "variables",
    [{}, {"XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c"}, {"APPLIANCE_STATE": "/a", "APPLIANCE_CACHE": "~/b"}],
    ids=["none", "xdg", "own"],
)
def test_quick_verbs_have_the_folders_of_the_settings(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = read_settings()
    assert (found.state, found.cache) == (environ.state_dir(), environ.cache_dir())


def test_a_verb_that_reads_a_wrong_setting_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_DEBUG", "maybe")
    assert main(["chat", "hello", "--url", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err == "error: APPLIANCE_DEBUG is 'maybe', and takes true or false\n"


def test_every_variable_is_on_the_page() -> None:
    """What the code reads of the environment by a name, ours or not, and nothing that it does not."""
    text = PAGE.read_text()
    named = re.compile(r'environ\.get\("(\w+)"\)|(?<![\w.])get\("([A-Z]\w+)"\)|"(APPLIANCE_[A-Z]+(?:_[A-Z]+)*)"')
    read = {
        next(filter(None, found.groups()))
        for path in (ROOT / "appliance").rglob("*.py")
        for found in named.finditer(path.read_text())
    }
    assert len(read) >= 8
    assert {name for name in read if name not in text} == set()
    assert {name for name, *_ in described() if f"| `{name}` |" not in text} == set()


def test_each_setting_costs_who_reads_it_alone() -> None:
    code = (
        "import sys; from appliance.cli.app import main; main(sys.argv[1:]); print('pydantic_settings' in sys.modules)"
    )
    for verb, expected in ((["explain", "cache"], "False"), (["chat", "hi", "--url", "http://127.0.0.1:9"], "True")):
        done = subprocess.run([sys.executable, "-c", code, *verb], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected


def test_a_folder_that_cannot_be_looked_at_is_left_to_who_uses_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one that this user may not read; a name that is too long fails in the same way, for every user."""
    barred = "/tmp/" + 300 * "x"
    monkeypatch.setenv(environ.STATE_VARIABLE, barred)
    assert read_settings().state == Path(barred)
    assert main(["status"]) == 1
    told = capsys.readouterr().err
    hint = "shorten its path, or name another folder with APPLIANCE_STATE"
    assert told == f"error: {barred}: File name too long\n  hint: {hint}\n"
