"""Files made by a command equal what the command makes now."""

from pathlib import Path

import pytest

from appliance.cli.app import main

ROOT = Path(__file__).resolve().parents[2]


def test_schema_and_reference_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["schema", "--check"]) == 0


def test_every_example_is_a_valid_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert list(ROOT.glob("docs/examples/*.yaml"))
    assert main(["validate", "docs/examples"]) == 0
