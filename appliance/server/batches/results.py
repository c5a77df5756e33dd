"""The files of a batch: what is wrong with its input, and its output split into answers and errors."""

import os
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from appliance.jobs.lines import LineError, parse, read_lines
from appliance.jobs.output import OutputLine
from appliance.jobs.runner import BatchFiles
from appliance.store.batches import BatchRecord
from appliance.store.store import Store

MAX_LINES = 50_000  # OpenAI's
_MAX_PROBLEMS = 100


def work_files(store: Store, batch_id: str) -> BatchFiles:
    folder = store.work_folder(batch_id)
    return BatchFiles(input=folder / "input.jsonl", output=folder / "run.jsonl", errors=folder / "failed.jsonl")


def problems_of(store: Store, batch: BatchRecord) -> tuple[int, list[dict[str, str | int | None]]]:
    """Returns the number of lines, and their problems; any problem fails the batch before it starts."""
    count, problems, seen = 0, list[dict[str, str | int | None]](), set[str]()
    for line in read_lines(work_files(store, batch.id).input):
        count += 1
        code, message = "", ""
        try:
            request = parse(line)
            if request.custom_id in seen:
                code, message = (
                    "duplicate_custom_id",
                    f"custom_id {request.custom_id[:100]!r} stands on an earlier line",
                )
            elif request.url != batch.endpoint:
                code, message = (
                    "mismatched_endpoint",
                    f"url is {request.url!r}, and the batch is for {batch.endpoint!r}",
                )
            seen.add(request.custom_id)
        except LineError as error:
            code, message = error.code, str(error)
        if code:
            problems.append({"code": code, "message": message[:500], "line": line.number, "param": None})
        if len(problems) >= _MAX_PROBLEMS:
            break
    if not count:
        problems.append({"code": "empty_file", "message": "the input has no lines", "line": None, "param": None})
    if count > MAX_LINES:
        message = f"the input has more than {MAX_LINES} lines"
        problems.append({"code": "too_many_lines", "message": message, "line": None, "param": None})
    return count, problems


def keep_results(store: Store, batch: BatchRecord) -> None:
    """Splits what was answered into the two files of OpenAI and keeps those that are not empty.

    Raises StoreFullError.
    """
    folder, files = store.work_folder(batch.id), store.files
    output, errors = folder / "output.jsonl", folder / "errors.jsonl"
    with output.open("wb") as answered, errors.open("wb") as failed:
        _split(work_files(store, batch.id).output, answered, failed)
    lifetime = batch.output_lifetime_s
    if os.path.getsize(output):
        name = f"{batch.id}_output.jsonl"
        batch.output_file_id = files.add(batch.owner, output, name, "batch_output", lifetime).id
    if os.path.getsize(errors):
        name = f"{batch.id}_error.jsonl"
        batch.error_file_id = files.add(batch.owner, errors, name, "batch_output", lifetime).id


def _split(source: Path, answered: BinaryIO, failed: BinaryIO) -> None:
    if not source.exists():
        return
    with source.open("rb") as lines:
        for text in lines:
            if not text.endswith(b"\n"):
                break  # torn by a kill
            line = msgspec.json.decode(text, type=OutputLine)
            (failed if line.error is not None else answered).write(msgspec.json.encode(_shown(line)) + b"\n")


def _shown(line: OutputLine) -> dict[str, Any]:
    """A request that was answered with an error has its response; one that was not asked has `error`."""
    error = line.error if line.response is None else None
    return {"id": line.id, "custom_id": line.custom_id, "response": line.response, "error": error}
