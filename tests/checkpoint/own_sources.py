"""Resolvers of sources as an operator would write them, and some that do what they should not."""

from pathlib import Path

SHELF = Path("/nowhere")
ASKED: list[tuple[str, bool]] = []


def find(source: str, offline: bool) -> Path | None:
    """corp://name is the folder `name` of a shelf; fetched ones are there only after a call that may fetch."""
    ASKED.append((source, offline))
    name = source.removeprefix("corp://")
    if name.startswith("far-") and offline:
        return None
    folder = SHELF / name
    return folder if folder.exists() else None


def fails(source: str, offline: bool) -> str:
    raise LookupError("no idea")


def says_a_number(source: str, offline: bool) -> int:
    return 3


def says_a_relative_path(source: str, offline: bool) -> str:
    return "model"


def says_a_missing_path(source: str, offline: bool) -> str:
    return "/no/such/folder"


NOT_A_FUNCTION = 3
