"""The model cache: files by the digest of their bytes, stored only after the digest was checked."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from appliance.base.disk import is_of_disk, remedy
from appliance.base.hashing import sha256_json
from appliance.checkpoint.errors import CacheError
from appliance.checkpoint.sources.options import Progress

_CHUNK: Final = 1 << 22


class CheckpointStore:
    """`root/<sha256>/<file>` are checked files; `root/work/<key>/` are unfinished downloads, kept for a resume."""

    def __init__(self, root: Path, setting: str) -> None:
        """`setting` names another root, for hints."""
        self.root = root
        self._setting = setting

    def lookup(self, sha256: str) -> Path | None:
        """Returns the file of that digest, or None. Its bytes were checked when it was stored."""
        folder = self.root / sha256
        with self._used():
            if not folder.is_dir():
                return None
            return next((path for path in sorted(folder.iterdir()) if path.is_file()), None)

    def put(self, file: Path, sha256: str, name: str) -> Path:
        """Moves a checked file from the work folder to its place, atomically. Returns the place."""
        target = self.root / sha256 / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
        return target

    def link(self, file: Path, sha256: str, name: str) -> Path:
        """Links to a checked file that another cache owns. Returns the link."""
        target = self.root / sha256 / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(file.resolve())
        return target

    def discard(self, work_dir: Path) -> None:
        """Removes the work folder of a finished download."""
        shutil.rmtree(work_dir, ignore_errors=True)

    @contextmanager
    def work(self, key: str) -> Iterator[Path]:
        """The folder of one download, held by one process at a time. Raises CacheError where the disk refuses a write,
        within the block as well."""
        folder = self.root / "work" / key
        with self._used():
            folder.mkdir(parents=True, exist_ok=True)
            with (self.root / "work" / f"{key}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                folder.mkdir(parents=True, exist_ok=True)
                yield folder

    @contextmanager
    def _used(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not is_of_disk(error):
                raise
            hint = remedy(error, self._setting)
            raise CacheError(f"the model cache {self.root}", f"cannot be used: {error.strerror}", hint) from error


class _Stamp(msgspec.Struct):
    """A file's digest, valid while the file's identity stays the same."""

    identity: tuple[str, int, int, int]
    sha256: str


def checked_digest(root: Path, file: Path, progress: Progress) -> str:
    """Returns the sha256 of a file outside the store. It is kept by path, size, mtime and inode, for fast starts."""
    path = file.resolve()
    status = path.stat()
    identity = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    stamp = root / "stamps" / f"{sha256_json(str(path))}.json"
    known = _stamped(stamp)
    if known is not None and known.identity == identity:
        return known.sha256
    digest = file_digest(path, progress)
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        temporary = stamp.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(_Stamp(identity, digest)))
        os.replace(temporary, stamp)
    except OSError as error:  # the next start reads the file again
        progress.note(f"the digest of {path.name} cannot be kept in {root}: {error.strerror}")
    return digest


def _stamped(stamp: Path) -> _Stamp | None:
    """Returns None if there is none, if it cannot be read, or if another version wrote it."""
    try:
        return msgspec.json.decode(stamp.read_bytes(), type=_Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def file_digest(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    progress.start(f"checking {path.name}", path.stat().st_size, "bytes")
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest()
