"""A file of API keys beside the plan: `{"keys": [{"name", "hash", ...rules}]}`. The keys themselves are not in it."""

import os
import re
from pathlib import Path

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.texts import without_mark
from appliance.plan.serving_types import KeyPlan

MAX_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class KeyEntry(KeyPlan, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    hash: str


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[KeyEntry] = []


def read_key_file(path: Path) -> list[KeyEntry]:
    """Raises ApplianceError that names the file and what is wrong in it."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ApplianceError(f"{path}: a file of keys has at most {MAX_BYTES} bytes")
        entries = msgspec.json.decode(without_mark(data, str(path)), type=KeyFile).keys
    except OSError as error:
        raise ApplianceError(
            f"{path}: {error.strerror}", hint="appliance keys new NAME --file PATH makes one"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApplianceError(f"{path} is no file of keys: {error}") from error
    for entry in entries:
        if not _NAME.fullmatch(entry.name) or not _HASH.fullmatch(entry.hash):
            raise ApplianceError(f"{path}: {entry.name[:63]!r}: a key has a name of a-z, 0-9 and -, and a sha256: hash")
    if len({entry.name for entry in entries}) < len(entries) or len({entry.hash for entry in entries}) < len(entries):
        raise ApplianceError(f"{path}: two keys have the same name or the same hash")
    return entries


def write_key_file(path: Path, entries: list[KeyEntry]) -> None:
    """Replaces the file in one step, readable by its owner alone."""
    text = msgspec.json.format(msgspec.json.encode(KeyFile(entries)), indent=2)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(text + b"\n")
    beside.replace(path)
