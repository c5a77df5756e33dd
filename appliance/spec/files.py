"""Recognizes the command-line arguments that are spec files."""

import os
from pathlib import Path
from typing import Final

SPEC_SUFFIXES: Final = (".yaml", ".yml", ".json")


def names_file(text: str) -> bool:
    """Returns whether a text means a file, which need not exist, rather than the name of a deployment."""
    return text.endswith(SPEC_SUFFIXES) or os.sep in text or Path(text).is_file()
