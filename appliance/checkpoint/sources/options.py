"""The options of a fetch, and the interface for its progress."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from appliance.base import environ
from appliance.checkpoint.errors import CheckpointError

COPY_HINT: Final = "connect this machine, or copy the files to it and name their path in model.source"

OFFLINE_HINT: Final = "fetch it first, without loading.offline, or name a path on this machine in model.source"


class UnreachableError(CheckpointError):
    """The source did not answer, or does not have the file; another source may have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """The options of a fetch. timeout_s bounds the silence of a server, not the length of a download."""

    cache_dir: Path = field(default_factory=lambda: environ.cache_dir() / "models")
    cache_setting: str = environ.CACHE_VARIABLE  # names another folder
    base_dir: Path = field(default_factory=Path.cwd)  # base of relative paths
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    only: Literal["all", "code", "config"] = "all"  # of a repository: its Python code, or its config, and no weights
    form: str = "auto"  # loading.load_format: of dummy no weights are fetched, of mistral its own files
    ignore_patterns: Sequence[str] = ("original/**/*",)
    offline: bool = False
    timeout_s: float = 10.0
    resolver: str | None = None  # the dotted path of code that resolves sources of other schemes


class Progress(Protocol):
    """Receives progress. There is one bar at a time: a new `start` ends the one before."""

    def start(self, label: str, total: int | None, unit: Literal["bytes", "files"]) -> None: ...

    def advance(self, amount: int) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Ignores progress."""

    def start(self, label: str, total: int | None, unit: Literal["bytes", "files"]) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Fetch:
    """One try at one address: the folder for files (`work_dir`, kept for a resume), and the name for a single file."""

    options: FetchOptions
    progress: Progress
    work_dir: Path
    name: str
