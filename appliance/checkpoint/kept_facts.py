"""Caches the facts of GGUF files on disk: reading a header with a large vocabulary is slower than all of planning."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from appliance import __version__
from appliance.base.hashing import sha256_json
from appliance.checkpoint.facts import ModelFacts

_FOLDER = "facts"
_SPLIT = "-of-"  # in the name of a split file, whose other parts could change unnoticed


def kept_facts(path: Path, cache: Path | None, read: Callable[[Path], ModelFacts]) -> ModelFacts:
    """Returns the result of `read` for the file, from `cache` if the file is unchanged.

    A file is identified by its path, size, inode and mtime. A cache that cannot be written is not used.
    """
    if cache is None or _SPLIT in path.name:
        return read(path)
    seen = path.stat()
    identity = [__version__, str(path), seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns]
    place = cache / _FOLDER / f"{sha256_json(identity)}.json"
    with suppress(OSError, msgspec.DecodeError):  # not cached, or by another version: read again
        return msgspec.json.decode(place.read_bytes(), type=ModelFacts)
    facts = read(path)
    with suppress(OSError):
        _write(place, msgspec.json.encode(facts))
    return facts


def _write(place: Path, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(place)
