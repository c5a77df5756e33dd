"""The interface of a grammar back-end. `guidance` is the one that is built in."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from appliance.engine.messages import Constraint

if TYPE_CHECKING:  # front ends import this module for its errors, without numpy
    import numpy as np
    import numpy.typing as npt


class GrammarError(Exception):
    """A constraint cannot be used. `path` leads from the request's field to the part to blame: ".properties.a.not"."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.path = path


class UntriedError(Exception):
    """A constraint could not be tried now. It may be valid: the client may try again later."""


class MatcherError(Exception):
    """A matcher cannot continue: its grammar became too complex, or a token did not fit."""


class Matcher(Protocol):
    """The position of one sequence in its grammar. Only one thread at a time may use it."""

    def fill(self, row: "npt.NDArray[np.uint32]") -> None:
        """Sets the bits of the tokens that may come next (see SamplingBatch.mask_bits). Raises MatcherError."""

    def consume(self, token_ids: Sequence[int]) -> None:
        """Advances by the tokens. Raises MatcherError when one does not fit."""

    def forced(self) -> list[int]:
        """Returns the tokens that must come next, which masks would enforce one by one; often none."""

    def num_fitting(self, token_ids: Sequence[int]) -> int:
        """Returns how many of the tokens, from the first on, may come next. Raises MatcherError."""

    def roll_back(self, count: int) -> None:
        """Takes back the last `count` tokens that were consumed. Raises MatcherError."""

    @property
    def is_complete(self) -> bool:
        """Only an end may come next."""

    @property
    def is_accepting(self) -> bool:
        """An end may come next."""


class Grammar(Protocol):
    """A compiled constraint; many sequences may start from it."""

    def start(self) -> Matcher:
        """Returns a matcher at the beginning."""

    def rehearse(self) -> None:
        """Takes a few short random walks through matchers, so that work which a library delays until the masks is done
        now. A walk that reaches no end is not an error: a model may take another path."""


class GrammarBackend(Protocol):
    def prepare(self, constraint: Constraint) -> str:
        """Returns the constraint in the library's own notation. Raises GrammarError."""

    def compile(self, constraint: Constraint, text: str | None = None) -> Grammar:
        """Compiles a constraint. text: the result of `prepare`, maybe from another process. Raises GrammarError."""
