"""The interface of a drafter, which proposes the tokens that may come next in a row."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from appliance.engine.step import Drafted, DraftTokens, DraftWish, NewRow


class Drafter(Protocol):
    """Proposes tokens from those of a row: a deterministic function, which costs about the same at any length.

    What it proposes changes how fast a request is answered, never the answer.
    """

    def put(self, row: int, tokens: Sequence[int], num_prompt: int, salt: str | None) -> None:
        """Starts a row. `tokens` are its tokens at any later call: the sequence grows, and is never shortened. What the
        row says may be used for rows of the same `salt` only."""

    def propose(self, row: int, most: int) -> DraftTokens | None:
        """Returns a draft of 1 to `most` tokens that may follow those of the row; None if it has none."""

    def drop(self, row: int) -> None:
        """Ends a row that was put; its tokens are complete, or it will be put again with them."""


class ModelDrafter(Protocol):
    """Drafts with a model or a head, for several rows at once, which takes time: between two steps, and only when it is
    asked. reads_states: it reads what the model keeps of each token."""

    reads_states: bool

    def put(self, new: NewRow) -> None:
        """Starts a row."""

    def observe(self, row: int, start: int, states: np.ndarray) -> None:
        """Takes the states of a row's tokens from position `start` on, f32 [tokens, W]."""

    def say(self, row: int, tokens: Sequence[int]) -> None:
        """Notes what a row said, and forgets drafts that it did not say."""

    def drop(self, row: int) -> None:
        """Ends a row."""

    def draft(self, wish: DraftWish) -> Drafted:
        """Drafts for rows that were put. Raises what the model raises; then it has drafted nothing."""

    def close(self) -> None:
        """Frees everything."""
