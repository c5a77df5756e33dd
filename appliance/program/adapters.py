"""Changes that adapters make to linear maps, embeddings and experts, for the sequences that have one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from appliance.program.record import Record
from appliance.program.routing import Experts
from appliance.program.slots import Slot, Span
from appliance.program.work import Forms, OperatorWork


class AdapterPlace(msgspec.Struct, frozen=True):
    """What an adapter may change together: logical weights [width, in_width], of which each has one of the widths.

    takes_whole: the one weight may also be changed by a matrix of its own shape. is_table: it is an embedding, whose
    rows are read by token.
    """

    parts: tuple[str, ...]
    widths: tuple[int, ...]
    in_width: int
    max_rank: int
    takes_whole: bool = False
    is_table: bool = False

    def shapes(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yields each logical weight and its shape."""
        yield from ((part, (width, self.in_width)) for part, width in zip(self.parts, self.widths, strict=True))

    @property
    def size(self) -> int:
        """The numbers of the largest change: low-rank matrices or a whole one, and two vectors of its outputs."""
        width = sum(self.widths)
        low_rank = self.max_rank * (len(self.parts) * self.in_width + width)
        return max(low_rank, width * self.in_width if self.takes_whole else 0) + 2 * (0 if self.is_table else width)


class AdapterLinear(Record, frozen=True):
    """out[t] += scale * (up @ down @ x[t] + stretch * out[t] + shift), part by part, for each token t of a sequence
    with an adapter; or with a whole matrix in place of up @ down.

    The parts lie side by side in `out`, as those of the Linear before do. Each is named by its logical weight
    [width, D], and has of an adapter `down` [r, D] and `up` [width, r], r at most max_rank, and the vectors `stretch`
    and `shift` [width], or some of these, or nothing. A step says which adapter a sequence has and with which scale
    (StepInputs.adapters); the set has the changes (Adapters).
    """

    doc = "changes that adapters make to what a Linear gives"

    x: Span
    out: Span
    parts: tuple[str, ...]
    widths: tuple[int, ...]  # of the parts in out
    max_rank: int
    takes_whole: bool = False

    def places(self) -> tuple[AdapterPlace, ...]:
        return (AdapterPlace(self.parts, self.widths, self.x.width, self.max_rank, self.takes_whole),)

    def work(self, forms: Forms) -> OperatorWork:
        """Returns the work of one adapter of the largest rank in every row."""
        operations = 2 * self.max_rank * (len(self.parts) * self.x.width + self.out.width)
        return OperatorWork("adapter_linear", row_operations=operations, extent=self.x.slot.extent)


class AdapterEmbed(Record, frozen=True):
    """out[t] += scale * the change of row token_ids[t] of an embedding [num_tokens, D], times the step's own scale."""

    doc = "changes that adapters make to token embeddings"

    out: Slot
    part: str
    num_tokens: int
    max_rank: int
    scale: float = 1.0
    takes_whole: bool = False

    def places(self) -> tuple[AdapterPlace, ...]:
        whole = self.takes_whole
        return (AdapterPlace((self.part,), (self.num_tokens,), self.out.width, self.max_rank, whole, is_table=True),)

    def work(self, forms: Forms) -> OperatorWork:
        return OperatorWork("adapter_embed", row_operations=2 * self.max_rank * self.out.width)


class AdapterExperts(Experts, frozen=True):
    """Experts of which each one's gate, up and down may be changed by adapters, as by an AdapterLinear after each.

    inner_parts: for each own expert the logical weights of its gate and of up, or of up alone. down_parts: one an
    expert.
    """

    doc = "experts, with the changes that adapters make to each"

    inner_parts: tuple[str, ...] = ()
    down_parts: tuple[str, ...] = ()
    max_rank: int = 0

    def places(self) -> tuple[AdapterPlace, ...]:
        """Returns two places an expert: of gate and up, and of down."""
        count = 2 if self.is_gated else 1
        found: list[AdapterPlace] = []
        for expert, down in enumerate(self.down_parts):
            inner = self.inner_parts[count * expert : count * (expert + 1)]
            found.append(AdapterPlace(inner, (self.width,) * count, self.x.width, self.max_rank))
            found.append(AdapterPlace((down,), (self.out_width,), self.width, self.max_rank))
        return tuple(found)

    def work(self, forms: Forms) -> OperatorWork:
        work = super().work(forms)
        one = sum(sum(place.widths) + len(place.parts) * place.in_width for place in self.places()[:2])
        added = 2 * self.max_rank * self.num_chosen * one * self.num_own // self.num_experts
        return msgspec.structs.replace(work, row_operations=work.row_operations + added)


def with_parts_of(op: AdapterExperts, experts: Sequence[int]) -> AdapterExperts:
    """Returns the experts with the places for adapters of some of them alone, in this order."""
    each = len(op.inner_parts) // len(op.down_parts)
    inner = tuple(op.inner_parts[each * expert + part] for expert in experts for part in range(each))
    return msgspec.structs.replace(op, inner_parts=inner, down_parts=tuple(op.down_parts[each] for each in experts))


Adapted = AdapterLinear | AdapterEmbed | AdapterExperts

_TYPE_BYTES: Mapping[str, int] = {"f32": 4, "bf16": 2}
_ALIGNMENT = 64  # bytes: a cache line


def places_of(operators: Iterable[Record]) -> Iterator[AdapterPlace]:
    """Yields the places for adapters of a program, in its order."""
    for operator in operators:
        if isinstance(operator, Adapted):
            yield from operator.places()


def place_bytes(place: AdapterPlace, dtype: str) -> int:
    """Returns the bytes of the largest change at a place, in "f32" or "bf16"."""
    return -(-place.size * _TYPE_BYTES[dtype] // _ALIGNMENT) * _ALIGNMENT


def adapter_slot_bytes(operators: Iterable[Record], dtype: str) -> int:
    """Returns the bytes of a slot: of the largest changes at every place among the operators."""
    return sum(place_bytes(place, dtype) for place in places_of(operators))


def num_adapter_slots(max_loras: int) -> int:
    """Returns the slots for steps with max_loras adapters: there is one more, in which a new adapter is checked."""
    return max_loras + 1 if max_loras else 0


def stack_problem(ranks: Sequence[int], max_rank: int) -> str | None:
    """Says why adapters of these ranks have no room in one slot together; None if they have."""
    if len(ranks) < 2 or sum(ranks) <= max_rank:
        return None
    return f"these adapters have rank {sum(ranks)} together, and slots are for {max_rank} (lora.max_rank)"
