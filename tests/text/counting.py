"""Counts work without a clock."""

import sys
from typing import Any


class CallCounter:
    """Counts calls of functions, Python's and the interpreter's own, and resumptions of generators."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "CallCounter":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self.count += event in ("call", "c_call")
