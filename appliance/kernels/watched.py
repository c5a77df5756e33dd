"""Executables that may end by themselves."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Watched(Protocol):
    """An executable that may end by itself between two steps."""

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """Has a function called with the reason, from another thread, when that happens; later steps fail."""
