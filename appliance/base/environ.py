"""The only reader of the process environment."""

import os
from collections.abc import Mapping
from pathlib import Path

OVERRIDE_PREFIX = "APPLIANCE__"  # APPLIANCE__SECTION__FIELD overrides a field of the spec
STATE_VARIABLE = "APPLIANCE_STATE"
CACHE_VARIABLE = "APPLIANCE_CACHE"
RANKS_TOKEN_VARIABLE = "APPLIANCE_RANKS_TOKEN"  # by which ranks of several machines know one another
COMPLETION_VARIABLE = "_APPLIANCE_COMPLETE"  # by which the scripts of `appliance completion` ask; typer reads it


def snapshot() -> Mapping[str, str]:
    """A copy of the environment, to be passed on as data."""
    return dict(os.environ)


def get(name: str) -> str | None:
    """Returns the variable's value, or None when it is unset or empty."""
    return os.environ.get(name) or None


def set_default(name: str, value: str) -> None:
    """Sets a variable for this process and its children, unless it is set already."""
    os.environ.setdefault(name, value)


def set_variable(name: str, value: str) -> None:
    """Sets a variable for this process and its children."""
    os.environ[name] = value


def home() -> Path:
    return Path(os.environ.get("HOME") or Path.home())


def cache_dir() -> Path:
    """Where downloads and converted tokenizers go: APPLIANCE_CACHE, else the XDG cache. Not created here."""
    if chosen := get(CACHE_VARIABLE):
        return Path(chosen).expanduser()  # no shell has expanded what a unit or an image sets
    return Path(get("XDG_CACHE_HOME") or home() / ".cache") / "appliance"


def state_dir() -> Path:
    """Where deployments keep their state: APPLIANCE_STATE, else the XDG state folder. Not created here."""
    if chosen := get(STATE_VARIABLE):
        return Path(chosen).expanduser()
    return Path(get("XDG_STATE_HOME") or home() / ".local" / "state") / "appliance"


def absolute_python_path() -> dict[str, str]:
    """PYTHONPATH for a child with another working folder: its relative folders are those of this process. Nothing where
    it is unset."""
    folders = [each for each in (get("PYTHONPATH") or "").split(os.pathsep) if each]
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in folders)} if folders else {}


def with_changes(**changes: str) -> dict[str, str]:
    """The environment of a child process: this one's with some variables set."""
    return {**os.environ, **changes}
