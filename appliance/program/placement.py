"""Where the experts of a mixture are: the places of ranks, and which expert is in each."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Literal, NamedTuple

from appliance.program.balance import balanced
from appliance.program.head_cuts import UncutError, even_cut

ExpertStrategy = Literal["linear", "round_robin"]


class ExpertPlaces(NamedTuple):
    """experts: the expert of each place. starts: the first place of each rank, and the number of places."""

    experts: tuple[int, ...]
    starts: tuple[int, ...]

    def of(self, rank: int) -> tuple[int, ...]:
        """Returns the experts of a rank, by its places."""
        return self.experts[self.starts[rank] : self.starts[rank + 1]]


class ExpertPlacing(NamedTuple):
    """How the experts of every mixture are placed. linear: neighbours in one rank; round_robin: one after the other
    over the ranks. num_redundant: places beside one for each expert, for copies. is_balanced: experts move between
    places while the program runs, and their loads are counted; then the places at first are those of equal loads."""

    strategy: ExpertStrategy = "linear"
    num_redundant: int = 0
    is_balanced: bool = False

    @property
    def is_in_order(self) -> bool:
        """Says whether the place of an expert is its number, always."""
        return self.strategy == "linear" and not self.num_redundant and not self.is_balanced

    def places(self, num_experts: int, num_ranks: int) -> ExpertPlaces:
        """Raises UncutError if the ranks cannot share so many experts and copies."""
        if self.num_redundant:
            return _with_copies(num_experts, self.num_redundant, num_ranks)
        cut = even_cut(num_experts, num_ranks)
        if self.strategy == "linear":
            return ExpertPlaces(tuple(range(num_experts)), (*(start for start, _ in cut), num_experts))
        of_ranks = [range(rank, num_experts, num_ranks) for rank in range(num_ranks)]
        return ExpertPlaces(tuple(chain(*of_ranks)), (0, *accumulate(map(len, of_ranks))))


IN_ORDER = ExpertPlacing()


def copy_counts(num_experts: int, num_ranks: int) -> tuple[int, ...]:
    """Returns the numbers of copies with which every rank has as many places, and no expert twice."""
    least = -num_experts % num_ranks
    return tuple(range(least, num_experts * (num_ranks - 1) + 1, num_ranks))


def rows_of_experts(experts: Sequence[int], height: int) -> tuple[tuple[int, int], ...]:
    """Returns the rows of experts, in order, in a weight that has so many rows of each."""
    return tuple((expert * height, (expert + 1) * height) for expert in experts)


def _with_copies(num_experts: int, num_redundant: int, num_ranks: int) -> ExpertPlaces:
    num_places = num_experts + num_redundant
    if num_redundant not in copy_counts(num_experts, num_ranks):
        raise UncutError(f"{num_experts} experts and {num_redundant} copies cannot be shared by {num_ranks} ranks")
    experts = balanced([1.0] * num_experts, num_places, num_ranks)
    return ExpertPlaces(experts, tuple(range(0, num_places + 1, num_places // num_ranks)))
