"""Identifies a checkpoint without reading it: by a digest that was checked, or by the state of its files."""

from pathlib import Path

from appliance.base.hashing import sha256_json
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.sharded_state import rank_files


def checkpoint_identity(facts: ModelFacts, sha256: str | None) -> str:
    """Returns an identity that changes whenever a weight may have changed.

    sha256: the checked digest of the whole file, which alone is the identity. If None, the identity is made of the
    path, size and mtime of every file, and the headers. Raises CheckpointError if a file is gone.
    """
    if sha256 is not None:
        return f"sha256:{sha256}"
    root = Path(facts.root)
    folder = root if root.is_dir() else root.parent
    files = []
    names = {tensor.file for tensor in facts.tensors} if facts.shards is None else rank_files(folder)
    for name in sorted(names):
        path = (folder / name).resolve()
        try:
            status = path.stat()
        except OSError as error:
            raise CheckpointError(name, f"cannot be read: {error.strerror}") from error
        files.append([str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns])
    return sha256_json({"files": files, "headers": facts.header_sha256})
