"""What the engine needs of a grammar back-end. `guidance` is the one that is built in."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from appliance.engine.messages import Constraint

if TYPE_CHECKING:  # front ends import this for its errors, and do without numpy
    import numpy as np
    import numpy.typing as npt


class GrammarError(Exception):
    """A constraint cannot be used. `path` leads from the request's field to what is to blame: ".properties.a.not"."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.path = path


class UntriedError(Exception):
    """A constraint could not be tried just now. It may be well: whoever asked may ask again."""


class MatcherError(Exception):
    """A matcher can go no further: its grammar became too complex on the way, or a token did not fit."""


class Matcher(Protocol):
    """Where one sequence stands in its grammar. For one thread at a time."""

    def fill(self, row: "npt.NDArray[np.uint32]") -> None:
        """Sets the bits of the tokens that may come next (see SamplingBatch.mask_bits). Raises MatcherError."""

    def consume(self, token_ids: Sequence[int]) -> None:
        """Moves on. Raises MatcherError when a token does not fit."""

    def forced(self) -> list[int]:
        """The tokens that every answer goes on with, as masks would enforce them one by one; often none."""

    @property
    def is_complete(self) -> bool:
        """Nothing but an end may come."""

    @property
    def is_accepting(self) -> bool:
        """An end may come."""


class Grammar(Protocol):
    """A compiled constraint; many sequences may start from it."""

    def start(self) -> Matcher:
        """A matcher at the beginning."""

    def rehearse(self) -> None:
        """Takes a few short random walks through matchers: what a library puts off until masks are asked for is done
        now. A walk that comes to no end is no error: a model may take another."""


class Backend(Protocol):
    def prepare(self, constraint: Constraint) -> str:
        """The constraint in the library's own notation. Raises GrammarError."""

    def compile(self, constraint: Constraint, text: str | None = None) -> Grammar:
        """text: what `prepare` made of the constraint, in another process maybe. Raises GrammarError."""
