"""Other clients of the same engine, whose requests wait in the same queue."""

from typing import Protocol


class Neighbours(Protocol):
    def note(self, num_open_sequences: int, num_tokens_ahead: int) -> None:
        """What this client has open, and the prompt tokens of it that wait for a first token."""

    def others(self) -> tuple[int, int]:
        """The same of all others together."""
