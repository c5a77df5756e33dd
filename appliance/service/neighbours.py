"""Other clients of the same engine, whose requests wait in the same queue."""

from typing import Protocol


class Neighbours(Protocol):
    def note(self, num_open_sequences: int, num_tokens_ahead: int) -> None:
        """Publishes what this client has open, and its prompt tokens that wait for a first token."""

    def others(self) -> tuple[int, int]:
        """Returns the same two numbers for all other clients together."""
