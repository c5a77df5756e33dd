"""Which texts of a command line are files of specs."""

import os
from pathlib import Path
from typing import Final

SPEC_SUFFIXES: Final = (".yaml", ".yml", ".json")


def names_file(text: str) -> bool:
    """Whether a text means a file rather than the name of a deployment, be the file there or not."""
    return text.endswith(SPEC_SUFFIXES) or os.sep in text or Path(text).is_file()
