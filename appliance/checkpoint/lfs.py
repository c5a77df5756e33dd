"""Git LFS pointers: the few lines of text in place of a large file that was not fetched."""

import re
from pathlib import Path
from typing import Final

from appliance.base.units import format_size
from appliance.checkpoint.errors import CheckpointError

POINTER_BYTES: Final = 1024  # the format allows no more
_POINTER: Final = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?size (\d{1,15})\n")


def refuse_pointer(name: str, head: bytes) -> None:
    """Raises CheckpointError if the file's first bytes (POINTER_BYTES are enough) are a pointer."""
    found = _POINTER.match(head[:POINTER_BYTES])
    if found is not None:
        raise CheckpointError(
            name,
            f"is a Git LFS pointer of a file of {format_size(int(found[1]))}, not the file itself",
            "run `git lfs pull` where it was cloned, or write hf://owner/name as the source",
        )


def refuse_pointer_file(path: Path) -> None:
    """Raises CheckpointError if the existing file is a pointer."""
    with path.open("rb") as file:
        refuse_pointer(path.name, file.read(POINTER_BYTES))
