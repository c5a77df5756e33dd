"""Stable digests of plain data."""

import hashlib
import json
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8. Raises ValueError for NaN and infinities, TypeError for what JSON cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """Hex digest of the canonical JSON."""
    return sha256_hex(canonical_json(value))


def sha256_file(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def key_hash(key: str) -> str:
    """How an API key is stored: `sha256:<hex>`. Keys are long random strings, so a plain digest is enough."""
    return "sha256:" + sha256_hex(key.encode("utf-8"))
