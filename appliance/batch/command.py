"""The settings of a batch, from the plan and the command line: the files, the order, and the concurrency."""

from pathlib import Path
from typing import Any

from appliance.base.errors import ApplianceError
from appliance.jobs.runner import BatchFiles, BatchOptions


def batch_files(
    planned: dict[str, Any], base: Path, *, input_file: str = "", output_file: str = "", error_file: str = ""
) -> BatchFiles:
    """Paths that were given start here, those of the spec at the spec (`base`). Raises ApplianceError."""
    source = _path(input_file, planned["input_file"], base)
    target = _path(output_file, planned["output_file"], base)
    if source is None or target is None:
        missing = "input" if source is None else "output"
        raise ApplianceError(f"no {missing} file", hint=f"--{missing} FILE, or batch.{missing}_file in the spec")
    errors = _path(error_file, planned["error_file"], base)
    return BatchFiles(
        input=source, output=target, errors=errors or target.with_name(f"{target.stem}.errors{target.suffix}")
    )


def batch_options(
    planned: dict[str, Any], *, order: str | None = None, resume: bool | None = None, max_concurrency: int = 0
) -> BatchOptions:
    """Returns the options of a batch; an argument that is None or 0 takes the planned value."""
    return BatchOptions(
        order="completion" if (order or planned["order"]) == "completion" else "input",
        resume=planned["resume"] if resume is None else resume,
        max_concurrency=max_concurrency or planned["max_concurrency"],
    )


def _path(given: str, planned: str | None, base: Path) -> Path | None:
    if given:
        return Path(given)
    return base / planned if planned else None
