"""How a fetch may go about its work, and whom it tells."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from appliance.base import environ
from appliance.checkpoint.errors import CheckpointError


class UnreachableError(CheckpointError):
    """The place did not answer, or does not have it; another may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """timeout_s bounds the silence of a server, not the length of a download."""

    cache_dir: Path = field(default_factory=lambda: environ.cache_dir() / "models")
    base_dir: Path = field(default_factory=Path.cwd)  # of relative paths
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    ignore_patterns: Sequence[str] = ("original/**/*",)
    offline: bool = False
    timeout_s: float = 10.0


class Progress(Protocol):
    """Told what goes on. Bars follow each other; a new `start` ends the one before."""

    def start(self, label: str, total: int | None, unit: Literal["bytes", "files"]) -> None: ...

    def advance(self, amount: int) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Progress that nobody watches."""

    def start(self, label: str, total: int | None, unit: Literal["bytes", "files"]) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Fetch:
    """One try at one address: where to put files (`work_dir`, kept for a resume) and what to name a single file."""

    options: FetchOptions
    progress: Progress
    work_dir: Path
    name: str
