"""The cache of packed weights on disk between starts: its files, its size limit, and its single writer."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from appliance.base.hashing import sha256_json
from appliance.base.log import fields, logger
from appliance.base.units import format_size
from appliance.kernels.reports import WeightsReport

SUFFIX = ".packed"
MIN_BYTES = 16 << 20  # smaller weights are packed about as fast as they are mapped
SPARE_BYTES = 1 << 30  # free disk space that is left to others

_log = logger("kernels")


class NotKeptError(Exception):
    """The packed weights cannot be kept; the message says why. That costs only time at the next start."""


@dataclass(slots=True)
class PackedCache:
    """A folder of files that never change once they have their name; the least recently used is removed first.

    identity: a digest of all that determines the weights, except the kernel set. label: makes file names readable.
    report: the kernel set that binds writes it.
    """

    folder: Path
    identity: str
    label: str
    max_bytes: int
    min_bytes: int = MIN_BYTES
    spare_bytes: int = SPARE_BYTES
    copies: bool = False  # copy weights into private memory with huge pages; else the file is mapped and shared
    report: WeightsReport | None = field(default=None)

    def key(self, kernel_set: str, packed_version: int) -> str:
        """Returns the key of the weights as one kernel set packs them."""
        return sha256_json({"weights": self.identity, "kernel_set": kernel_set, "packed_version": packed_version})

    def path(self, key: str) -> Path:
        return self.folder / f"{self.label}-{key[:32]}{SUFFIX}"

    def touch(self, path: Path) -> None:
        """Marks a file as used now. A read-only folder works too."""
        with contextlib.suppress(OSError):
            os.utime(path)

    @contextlib.contextmanager
    def writing(self, path: Path, size_bytes: int) -> Iterator[int]:
        """Yields a descriptor with room for a file of this size; if the block succeeds, the file gets its name at once.

        Raises NotKeptError if it does not fit, exists already, or another process is writing it; OSError if the disk
        refuses. The file is synced to disk before it gets its name, so no reader sees a part of it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with _locked(part) as descriptor:
            try:
                if path.exists():
                    raise NotKeptError("another engine has kept them")
                self._make_room(size_bytes)
                os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, size_bytes)
                yield descriptor
                os.fsync(descriptor)
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        _sync_folder(self.folder)

    def _make_room(self, size_bytes: int) -> None:
        """Removes the least recently used files. Processes that map a removed file keep it until they end."""
        if size_bytes > self.max_bytes:
            told = f"they take {format_size(size_bytes)}, and {format_size(self.max_bytes)} may be kept"
            raise NotKeptError(f"{told} (loading.packed_size)")
        _remove_abandoned(self.folder)
        kept = sorted(((path.stat(), path) for path in self.folder.glob(f"*{SUFFIX}")), key=lambda f: f[0].st_mtime_ns)
        total = sum(status.st_size for status, _ in kept)
        while kept and (total + size_bytes > self.max_bytes or self._free() < size_bytes + self.spare_bytes):
            status, path = kept.pop(0)
            path.unlink(missing_ok=True)
            total -= status.st_size
            _log.info("kept weights are removed to make room", extra=fields(file=path.name))
        if self._free() < size_bytes + self.spare_bytes:
            free = format_size(self._free())
            raise NotKeptError(f"the disk has {free} left, and {format_size(self.spare_bytes)} are for others")

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[int]:
    """Yields the unfinished file, locked for one writer at a time. The lock ends with its writer."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotKeptError("another engine is writing them") from None
        if not _is_at(descriptor, part):
            raise NotKeptError("another engine has just written them")
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns False if the file was renamed or removed before we had its lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: Path) -> None:
    """Removes unfinished files whose writers are gone."""
    for part in folder.glob("*.part"):
        with contextlib.suppress(NotKeptError, FileNotFoundError), _abandoned(part):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _abandoned(part: Path) -> Iterator[None]:
    descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise NotKeptError("it is being written") from None
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
