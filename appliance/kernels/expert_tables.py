"""The places of a mixture's experts while its program runs, and how often each expert was chosen."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from appliance.program.operators import StepProgram
from appliance.program.routing import PlaceExperts


class ExpertTable:
    """starts: int32 [E + 1], places: int32 [P]: expert e is in places[starts[e]] to places[starts[e + 1] - 1], which
    rise. loads: int64 [E], how many rows chose each expert since it was bound. The arrays stay where they are."""

    def __init__(self, num_experts: int, placed: Sequence[int]) -> None:
        self.starts = np.zeros(num_experts + 1, np.int32)
        self.places = np.zeros(len(placed), np.int32)
        self.loads = np.zeros(num_experts, np.int64)
        self.placed: tuple[int, ...] = ()  # the expert of each place
        self.place(placed)

    def place(self, placed: Sequence[int]) -> None:
        """Changes which expert is in each place. Raises ValueError if one has none, or there are other places."""
        experts = np.asarray(placed, np.int64)
        counts = np.bincount(experts, minlength=len(self.loads))
        if len(experts) != len(self.places) or len(counts) != len(self.loads) or not counts.all():
            raise ValueError("every expert has a place, and there are as many as before")
        self.starts[1:] = np.cumsum(counts)
        self.places[:] = np.argsort(experts, kind="stable")
        self.placed = tuple(placed)

    def find(self, experts: np.ndarray) -> np.ndarray:
        """Returns the places of experts, int32 [rows, k], as operator PlaceExperts says, and counts them."""
        first, copies = self.starts[experts], np.diff(self.starts)[experts]
        np.add.at(self.loads, experts.ravel(), 1)
        found: np.ndarray = self.places[first + (np.arange(len(experts))[:, None] + experts) % copies]
        return found


def tables_of(programs: Iterable[StepProgram | None]) -> Mapping[int, ExpertTable]:
    """Returns the table of each mixture whose experts have places, one for all programs over the same weights."""
    operators = (op for program in programs if program is not None for op in program.operators)
    return {op.mixture: ExpertTable(op.num_experts, op.placed) for op in operators if isinstance(op, PlaceExperts)}
