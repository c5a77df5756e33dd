"""The file itself: canonical text, and what differs between two of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import yaml

from appliance.base.errors import ApplianceError, ExitCode

LOCK_VERSION: Final = 1
SUFFIX: Final = ".lock"
_HEAD: Final = "# Made by `appliance lock`; `appliance lock --check` and `appliance apply --locked` read it.\n"


class LockError(ApplianceError):
    """The lock file is missing, unreadable, or says something else than what is here."""

    exit_code = ExitCode.INVALID


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests are SHA-256 in hexadecimal."""

    version: int = LOCK_VERSION
    name: str
    files: dict[str, str]  # "model/<path below the checkpoint>" -> digest
    planned: dict[str, str]  # planned value -> digest
    kernels: dict[str, str]  # kernel_set -> its name; library -> digest
    packages: dict[str, str]  # package -> version


@dataclass(frozen=True, slots=True)
class LockDifference:
    what: str  # "files: model/config.json"
    locked: str | None  # None: not in the lock
    found: str | None  # None: not here


def lock_path(spec: Path) -> Path:
    """deployment.yaml -> deployment.lock, beside it."""
    return spec.with_suffix(SUFFIX)


def lock_text(lock: Lock) -> str:
    """The same bytes for the same lock, whatever the order it was collected in."""
    return _HEAD + yaml.safe_dump(msgspec.to_builtins(lock), sort_keys=True, width=200)


def read_lock(path: Path) -> Lock:
    """Raises LockError."""
    try:
        lock = msgspec.yaml.decode(path.read_bytes(), type=Lock)
    except FileNotFoundError:
        raise LockError(f"{path} is not there", hint="`appliance lock` writes it") from None
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise LockError(f"{path} is no lock file: {error}", hint="`appliance lock` writes a new one") from error
    if lock.version != LOCK_VERSION:
        raise LockError(f"{path} has version {lock.version}, and this is an appliance of version {LOCK_VERSION}")
    return lock


def differences(locked: Lock, found: Lock) -> tuple[LockDifference, ...]:
    return tuple(_differences(locked, found))


def _differences(locked: Lock, found: Lock) -> Iterator[LockDifference]:
    if locked.name != found.name:
        yield LockDifference("name", locked.name, found.name)
    for section in ("files", "planned", "kernels", "packages"):
        was: dict[str, str] = getattr(locked, section)
        now: dict[str, str] = getattr(found, section)
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                yield LockDifference(f"{section}: {name}", was.get(name), now.get(name))


def require_same(path: Path, found: Lock) -> None:
    """Raises LockError that names every difference."""
    differing = differences(read_lock(path), found)
    if differing:
        lines = "".join(f"\n  {told(each)}" for each in differing)
        message = f"{len(differing)} thing{'s' * (len(differing) > 1)} differ from {path.name}:{lines}"
        raise LockError(message, hint="mend it, or accept it with `appliance lock`")


def told(difference: LockDifference) -> str:
    return f"{difference.what}: {_short(difference.locked)} in the lock, {_short(difference.found)} here"


def _short(value: str | None) -> str:
    return "not" if value is None else value[:16]
