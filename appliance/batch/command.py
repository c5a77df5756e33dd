"""The `batch` verb's wishes, and what they make of a plan: which files, in what order, how much at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.base.errors import ApplianceError
from appliance.jobs.runner import BatchFiles, BatchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommand:
    """Empty and None: as the spec says."""

    spec: str
    input: str = ""
    output: str = ""
    errors: str = ""
    order: str | None = None
    resume: bool | None = None
    max_concurrency: int = 0
    overrides: Sequence[str] = ()
    as_json: bool = False


def batch_files(command: BatchCommand, planned: dict[str, Any], base: Path) -> BatchFiles:
    """Paths of the command line start here, those of the spec at the spec (`base`). Raises ApplianceError."""
    source, target = (
        _path(command.input, planned["input_file"], base),
        _path(command.output, planned["output_file"], base),
    )
    if source is None or target is None:
        missing = "input" if source is None else "output"
        raise ApplianceError(f"no {missing} file", hint=f"--{missing} FILE, or batch.{missing}_file in the spec")
    errors = _path(command.errors, planned["error_file"], base)
    return BatchFiles(
        input=source, output=target, errors=errors or target.with_name(f"{target.stem}.errors{target.suffix}")
    )


def batch_options(command: BatchCommand, planned: dict[str, Any]) -> BatchOptions:
    return BatchOptions(
        order="completion" if (command.order or planned["order"]) == "completion" else "input",
        resume=planned["resume"] if command.resume is None else command.resume,
        max_concurrency=command.max_concurrency or planned["max_concurrency"],
    )


def _path(given: str, planned: str | None, base: Path) -> Path | None:
    if given:
        return Path(given)
    return base / planned if planned else None
