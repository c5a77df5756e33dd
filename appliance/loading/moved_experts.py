"""Moves experts between the places of a rank: their rows are read from the checkpoint into those that they replace."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from appliance.kernels.interface import MovesExperts
from appliance.kernels.layout import CanonicalWeight
from appliance.loading.sharded_weights import some_rows
from appliance.loading.weights import DecoderWeights
from appliance.program.operators import StepProgram
from appliance.program.routing import Experts, rows_an_expert
from appliance.program.sharding import WeightRows


class MovedExperts:
    """The mixtures of a rank's program. rows: of its weights that are not whole. read: opens the whole weights."""

    def __init__(
        self,
        executable: MovesExperts,
        program: StepProgram,
        rows: Mapping[str, WeightRows],
        read: Callable[[], AbstractContextManager[DecoderWeights]],
    ) -> None:
        self._executable, self._rows, self._read = executable, rows, read
        self._mixtures = [op for op in program.operators if isinstance(op, Experts)]
        self._loaded = [executable.expert_tables[each].placed for each in range(len(self._mixtures))]

    def move(self, mixture: int, placed: tuple[int, ...]) -> int:
        """Fills the rank's places of a mixture that get another expert, and then changes its table. Returns how many.
        No step may run meanwhile. Raises like loading the model."""
        op, table = self._mixtures[mixture], self._executable.expert_tables[mixture]
        first, last = op.own or (0, op.num_experts)
        changed = [place for place in range(first, last) if placed[place] != table.placed[place]]
        if changed:
            with self._read() as whole:
                for name, height in rows_an_expert(op).values():
                    for place in changed:
                        weight = self._expert(whole, name, placed[place], height)
                        self._executable.write_rows(name, (place - first) * height, weight)
        table.place(placed)
        return len(changed)

    def put_again(self) -> None:
        """Fills the places that other experts have by now than when the model was loaded, whose weights are read from
        the checkpoint again as they were then. No step may run meanwhile. Raises like loading the model."""
        for mixture, first in enumerate(self._loaded):
            table = self._executable.expert_tables[mixture]
            placed = table.placed
            table.place(first)
            self.move(mixture, placed)

    def _expert(self, whole: DecoderWeights, name: str, expert: int, height: int) -> CanonicalWeight:
        source = self._rows[name].source if name in self._rows else name
        return some_rows(whole, source, ((expert * height, (expert + 1) * height),))
