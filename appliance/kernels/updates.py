"""New weights for a bound program: read beside the steps, and put in place between two of them."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from appliance.kernels.layout import CanonicalWeight


class StagedWeights(Protocol):
    """Weights in memory of their own, in the forms of those that they are to replace."""

    def commit(self) -> None:
        """Puts them in place of the bound ones, and gives their own memory back. No step runs, and none has begun
        early. An error leaves weights of both in place: the executable cannot be used any more."""

    def close(self) -> None:
        """Gives their memory back; the bound weights stay."""


@runtime_checkable
class Updates(Protocol):
    """A set whose weights can be replaced while it is bound."""

    def stage_weights(self, weights: Mapping[str, CanonicalWeight]) -> StagedWeights:
        """Reads some or all weights of the program, beside the steps and from another thread. The bound ones stay as
        they are. Raises BindError if one has another form than the bound one, ExecutableError without the memory."""
