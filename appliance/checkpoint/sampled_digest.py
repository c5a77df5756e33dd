"""A digest of a checkpoint's content that takes a moment: of pieces of its files, so that two machines can compare."""

import hashlib
from pathlib import Path

PIECES = 256  # of each file, evenly over it: a fine-tuned model differs in nearly every tensor
PIECE_BYTES = 4096
_SUFFIXES = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth", ".tensors"})


def sampled_sha256(path: Path) -> str:
    """Returns a digest of the names, sizes and some pieces of the weight files at a path: a file, or a folder. Raises
    OSError if one cannot be read."""
    digest = hashlib.sha256()
    for file in _files(path):
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''}:{size}\n".encode())
        with file.open("rb") as stream:
            for number in range(PIECES):
                stream.seek(number * max(0, size - PIECE_BYTES) // max(1, PIECES - 1))
                digest.update(stream.read(PIECE_BYTES))
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
