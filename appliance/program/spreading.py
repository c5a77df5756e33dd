"""Makes of a program the one that each of several replicas runs, which have the experts of mixtures among them.

Everything else a replica has whole, with rows, cache and states of its own. Replicas run their steps together.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from appliance.program.adapters import AdapterExperts
from appliance.program.head_cuts import UncutError
from appliance.program.operators import Operator, StepProgram
from appliance.program.placement import IN_ORDER, ExpertPlacing, rows_of_experts
from appliance.program.routing import Experts, PlaceExperts, SpreadExperts, rows_an_expert
from appliance.program.shard_layout import WHOLE, Shard, joined
from appliance.program.sharding import ShardedProgram, WeightRows
from appliance.program.slots import Extent, Slot

_ALIGNMENT = 64


def spread_experts(
    program: StepProgram, replica: Shard, placing: ExpertPlacing = IN_ORDER, shard: Shard = WHOLE
) -> ShardedProgram:
    """Returns the program of one replica. All replicas have the same operators in the same order.

    shard: of the replica's tensor ranks, which have its experts among them, one that has everything else for now.

    Raises UncutError if the experts cannot be shared by so many replicas, or adapters may change them: a replica does
    not have the adapters of the others' rows.
    """
    spreader = _Spreader(program, replica, placing, shard)
    operators = tuple(each for op in program.operators for each in spreader.made_of(op))
    return ShardedProgram(replace(program, operators=operators, slots=tuple(spreader.slots)), spreader.rows, {})


class _Spreader:
    def __init__(self, program: StepProgram, replica: Shard, placing: ExpertPlacing, shard: Shard) -> None:
        self._num_replicas, self._placing = replica.num_ranks, placing
        # Experts are divided among the ranks of all replicas, as if these were one group.
        self._rank = Shard(replica.rank * shard.num_ranks + shard.rank, replica.num_ranks * shard.num_ranks)
        self.slots, self.rows = list(program.slots), dict[str, WeightRows]()
        self._places: dict[tuple[Extent, int], Slot] = {}
        self._num_mixtures = 0

    def made_of(self, op: Operator) -> Iterable[Operator]:
        if isinstance(op, AdapterExperts):
            raise UncutError("adapters may change its experts, and a replica has no others' adapters")
        if not isinstance(op, Experts):
            return (op,)
        number, count = self._rank
        places = self._placing.places(op.num_experts, count)
        for name, size in rows_an_expert(op).values():
            rows = WeightRows(name, joined(rows_of_experts(places.of(number), size)))
            assert self.rows.setdefault(name, rows) == rows, "mixtures that share weights share their places"
        own = places.starts[number], places.starts[number + 1]
        fields = {name: getattr(op, name) for name in Experts.__struct_fields__}
        if self._placing.is_in_order:
            return (SpreadExperts(**fields | {"own": own, "num_replicas": self._num_replicas}),)
        out, mixture = self._places_slot(op.experts), self._num_mixtures
        self._num_mixtures += 1
        place = PlaceExperts(op.experts, out, op.num_experts, places.experts, mixture)
        return place, SpreadExperts(**fields | {"experts": out, "own": own, "num_replicas": self._num_replicas})

    def _places_slot(self, experts: Slot) -> Slot:
        """Returns a slot for the places of a row's experts, one for all mixtures that choose as many."""
        key = (experts.extent, experts.width)
        if key not in self._places:
            self._places[key] = replace(experts, index=len(self.slots), base=None, start=0)
            self.slots.append(self._places[key])
        return self._places[key]


class SpreadMemory(NamedTuple):
    """Where the memory that replicas share has what mixtures read and give: places for all rows of all replicas. One
    mixture after the other uses them. size_bytes: of all."""

    x: int
    experts: int
    factors: int
    outputs: int
    size_bytes: int

    @classmethod
    def of(cls, program: StepProgram, rows: Mapping[Extent, int]) -> "SpreadMemory":
        """rows: the most of one replica. Without mixtures it takes nothing."""
        mixtures = [op for op in program.operators if isinstance(op, SpreadExperts)]
        widths = [(op.x.width, op.num_chosen, op.num_chosen, op.num_chosen * op.out.width) for op in mixtures]
        starts = [0]
        for field in range(4):
            sizes = (
                4 * rows[op.x.extent] * op.num_replicas * width[field]
                for op, width in zip(mixtures, widths, strict=True)
            )
            starts.append(starts[-1] + -(-max(sizes, default=0) // _ALIGNMENT) * _ALIGNMENT)
        return cls(*starts)

    def share_bytes(self, num_replicas: int) -> int:
        """Returns what one of so many replicas has of it: the part for its own rows."""
        return -(-self.size_bytes // num_replicas)
