"""Facts of GGUF files, kept on disk: to walk a header with a large vocabulary takes longer than all of planning."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from appliance import __version__
from appliance.base.hashing import sha256_json
from appliance.checkpoint.facts import ModelFacts

_FOLDER = "facts"
_SPLIT = "-of-"  # of one file among several, whose other parts could change unseen


def kept_facts(path: Path, cache: Path | None, read: Callable[[Path], ModelFacts]) -> ModelFacts:
    """What `read` gives for the file, from `cache` where the file is the one that was read.

    A file is known by its place, size, inode and time of change. A cache that cannot be written is done without.
    """
    if cache is None or _SPLIT in path.name:
        return read(path)
    seen = path.stat()
    identity = [__version__, str(path), seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns]
    place = cache / _FOLDER / f"{sha256_json(identity)}.json"
    with suppress(OSError, msgspec.DecodeError):  # not kept, or by another version: it is read again
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
