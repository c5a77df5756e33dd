"""Writes a checkpoint's tensors as they are stored into one file of tensorizer, in a folder with its other files."""

import os
import re
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, NamedTuple

from appliance.base.disk import remedy
from appliance.base.errors import ExitCode
from appliance.checkpoint.decrypted import DecryptedTensors
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.loader_choice import CheckpointKey
from appliance.checkpoint.reader import TensorReader, TensorSource
from appliance.checkpoint.safetensors import read_folder
from appliance.checkpoint.sources.options import Progress
from appliance.checkpoint.tensorizer import read_tensors
from appliance.checkpoint.tensorizer_key import PLAIN, Sealer
from appliance.checkpoint.tensorizer_writer import write_tensors
from appliance.checkpoint.torch_file import has_torch_files, read_torch_folder

NAME: Final = "model.tensors"
_BESIDE: Final = ("*.json", "*.jinja", "*.model", "*.model.v*", "merges.txt", "vocab.txt")
_WEIGHTS: Final = re.compile(r".*\.(index\.json|safetensors|bin|pt|gguf|tensors)")


class Stored(NamedTuple):
    """A checkpoint in files of safetensors or PyTorch, or of tensorizer. key: opens the last, if it is encrypted."""

    root: Path
    is_serialized: bool = False
    key: CheckpointKey | None = None


class TakenFolderError(CheckpointError):
    """The folder to be written has something in it."""

    exit_code = ExitCode.INVALID


def serialize(stored: Stored, target: Path, key: CheckpointKey | None, progress: Progress) -> tuple[TensorFacts, ...]:
    """Makes the folder `target`, which must not be there or be empty, of a checkpoint. It is there whole or not at
    all. key: encrypts the tensors; the files beside them stay plain.

    Returns the tensors. Raises CheckpointError or MissingExtraError.
    """
    sealer = None if key is None else Sealer(key)
    tensors = _tensors(stored)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TakenFolderError(target.name, "is there already, and not empty", "name another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as partial:
            made = Path(partial) / target.name
            made.mkdir()
            _copy_beside(stored.root, made)
            _write(stored, tensors, made / NAME, sealer, progress)
            made.rename(target)  # over an empty folder, if there is one
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise CheckpointError(target.name, problem, remedy(error, "--output")) from error
    return tensors


def _tensors(stored: Stored) -> tuple[TensorFacts, ...]:
    """Returns the tensors under their stored names, those of quantized matrices apart. Raises CheckpointError."""
    root = stored.root
    if not (root / "config.json").is_file():
        problem = "is no folder with config.json and files of safetensors, PyTorch or tensorizer"
        raise CheckpointError(root.name, problem)
    if inner := sorted(path.relative_to(root) for path in root.glob("*/*") if _is_weights(path)):
        raise CheckpointError(root.name, f"{inner[0]} has weights too, which would stay as they are")
    if stored.is_serialized:
        tensors, _ = read_tensors(root)
    else:
        tensors, _ = (read_torch_folder if has_torch_files(root) else read_folder)(root)
    return tensors


def _is_weights(path: Path) -> bool:
    return path.is_file() and _WEIGHTS.fullmatch(path.name) is not None


def _copy_beside(root: Path, made: Path) -> None:
    """Copies configs, tokenizers and templates, also those of modules of sentence-transformers."""
    for path in (*root.iterdir(), *root.glob("[0-9]*_*/*")):
        if path.is_file() and not _is_weights(path) and any(fnmatch(path.name, each) for each in _BESIDE):
            copy = made / path.relative_to(root)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def _source(stored: Stored, tensors: tuple[TensorFacts, ...]) -> AbstractContextManager[TensorSource]:
    if any(tensor.sealed_at is not None for tensor in tensors):
        return nullcontext(DecryptedTensors(stored.root, tensors, stored.key))
    if stored.key is not None:
        raise CheckpointError(stored.root.name, PLAIN)
    return TensorReader(stored.root, tensors)


def _write(
    stored: Stored, tensors: tuple[TensorFacts, ...], path: Path, sealer: Sealer | None, progress: Progress
) -> None:
    progress.start(NAME, sum(tensor.size_bytes for tensor in tensors), "bytes")
    with path.open("xb") as file, _source(stored, tensors) as source:
        write_tensors(file, tensors, source, sealer, progress.advance)
        file.flush()
        os.fsync(file.fileno())
