"""Adapters: low-rank maps that are added to what a Linear gives, for the sequences that have one."""

from collections.abc import Iterable, Iterator, Mapping

from appliance.program.record import Record
from appliance.program.slots import Span
from appliance.program.work import Forms, OperatorWork


class AdapterLinear(Record, frozen=True):
    """out[t] += scale * (x[t] @ down.T) @ up.T, part by part, for each token t of a sequence with an adapter.

    The parts lie side by side in `out`, as those of the Linear before do. Each is named by its logical weight
    [width, D], and has of an adapter `down` [r, D] and `up` [width, r], r at most max_rank, or nothing at all. A step
    says which adapter a sequence has and with which scale (StepInputs.adapters); the set has the maps (Adapters).
    """

    doc = "low-rank maps of adapters, added to what a Linear gives"

    x: Span
    out: Span
    parts: tuple[str, ...]
    widths: tuple[int, ...]  # of the parts in out
    max_rank: int

    def shapes(self) -> Iterator[tuple[str, int]]:
        """Yields each part and its width."""
        yield from zip(self.parts, self.widths, strict=True)

    @property
    def down_size(self) -> int:
        """The numbers of the largest `down` of all parts of one adapter."""
        return len(self.parts) * self.max_rank * self.x.width

    @property
    def up_size(self) -> int:
        """The numbers of the largest `up` of all parts of one adapter."""
        return self.max_rank * self.out.width

    def work(self, forms: Forms) -> OperatorWork:
        """Returns the work of one adapter of the largest rank in every row."""
        operations = 2 * (self.down_size + self.up_size)
        return OperatorWork("adapter_linear", row_operations=operations, extent=self.x.slot.extent)


_TYPE_BYTES: Mapping[str, int] = {"f32": 4, "bf16": 2}
_ALIGNMENT = 64  # bytes: a cache line


def place_bytes(place: AdapterLinear, dtype: str) -> int:
    """Returns the bytes of one adapter of the largest rank at a place, in "f32" or "bf16"."""
    size = (place.down_size + place.up_size) * _TYPE_BYTES[dtype]
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def adapter_slot_bytes(operators: Iterable[Record], dtype: str) -> int:
    """Returns the bytes of a slot: of an adapter of the largest rank at every place among the operators."""
    return sum(place_bytes(place, dtype) for place in operators if isinstance(place, AdapterLinear))


def num_adapter_slots(max_loras: int) -> int:
    """Returns the slots for steps with max_loras adapters: there is one more, in which a new adapter is checked."""
    return max_loras + 1 if max_loras else 0
