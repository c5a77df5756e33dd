"""The file itself: a tar.gz of a few small texts. What is read is bounded, and nothing is unpacked to disk."""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from appliance.base.errors import ApplianceError, ExitCode

MAX_BYTES: Final = 64 << 20  # of all members together
MAX_MEMBERS: Final = 32


class BundleError(ApplianceError):
    """A file is no bundle, or one that cannot be written."""

    exit_code = ExitCode.INVALID


def write_archive(path: Path, members: Mapping[str, str]) -> None:
    """Private to the user, and never over another file. Raises BundleError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BundleError(f"{path} is there already", hint="name another file") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in members.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))


def read_archive(path: Path) -> dict[str, str]:
    """Texts by name. Raises BundleError."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            return _members(path, archive)
    except FileNotFoundError:
        raise BundleError(f"{path} is not there") from None
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is no bundle: {error}", hint="`appliance doctor --bundle FILE` makes one") from None


def _members(path: Path, archive: tarfile.TarFile) -> dict[str, str]:
    found: dict[str, str] = {}
    left = MAX_BYTES
    for member in archive:
        left -= member.size
        if left < 0 or len(found) == MAX_MEMBERS:
            raise BundleError(f"{path} is too large for a bundle")
        stream = archive.extractfile(member) if member.isfile() else None
        if stream is None:
            raise BundleError(f"{path} is no bundle: {member.name} is no file")
        found[member.name] = stream.read().decode("utf-8")
    return found
