"""What the package says of itself: one version, its licence, and nothing that is not there."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = PYPROJECT["tool"]["scikit-build"]


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert "version" not in PYPROJECT["project"]
    [source] = PYPROJECT["tool"]["dynamic-metadata"]
    assert (source["field"], source["input"]) == ("version", "appliance/__init__.py")


def test_what_the_wheel_is_made_of_is_there() -> None:
    assert len(BUILD["wheel"]["packages"]) > 2
    for folder in BUILD["wheel"]["packages"].values():
        assert (ROOT / folder).is_dir(), folder
    for name in PYPROJECT["project"]["license-files"]:
        assert (ROOT / name).read_text().strip(), name
    assert (ROOT / "appliance" / "py.typed").exists()
