"""Where the ranks of a program have its activations: which slots they share, and which columns are a rank's own."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from appliance.program.cuts import Cuts, Touch, fits, is_divided, slots_touched
from appliance.program.head_cuts import Cut
from appliance.program.operators import StepProgram
from appliance.program.slots import Slot, Span, whole

Rows = tuple[tuple[int, int], ...]  # of a weight, as (start, stop)

# Local: nothing reads more than a rank's own columns in it, so it has no others; what is read whole is copied to a
# shared slot. Shared: ranks write their columns, and all are read. Private: each rank has all columns.
SlotKind = Literal["local", "shared", "private"]
_READING = ("take", "read")


class Shard(NamedTuple):
    rank: int
    num_ranks: int


WHOLE = Shard(0, 1)


class ShardLayout:
    """The slots of a rank, for a program and for the same with less in it (layers.adapters)."""

    def __init__(self, program: StepProgram, shard: Shard) -> None:
        """Raises UncutError if heads or columns cannot be shared by so many ranks."""
        self._shard = shard
        self.cuts = Cuts.of(program, shard.num_ranks)
        self._outside = (program.logits, program.kept)
        self._given = program.given
        touched = slots_touched(program, shard.num_ranks)
        self.kinds = {slot.index: self._kind_of(slot, touched.get(slot.index, [])) for slot in program.slots}
        self._slots = {
            slot.index: self._local(slot) if self.kinds[slot.index] == "local" else slot for slot in program.slots
        }
        self._views: dict[Span, Slot] = {}
        self._twins: dict[tuple[str, int], Slot] = {}
        self._places: dict[tuple[str, int], Slot] = {}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(self._slots.values())

    @property
    def shared(self) -> frozenset[int]:
        return frozenset(index for index, kind in self.kinds.items() if kind == "shared")

    def kind(self, slot: Slot) -> SlotKind:
        return self.kinds[slot.index]

    def width(self, cut: Cut) -> int:
        start, stop = cut[self._shard.rank]
        return stop - start

    def rows(self, span: Span) -> Rows:
        """Returns a rank's columns of a span of a slot that is cut, from its start, as rows of a weight that gives
        them."""
        parts = self.cuts.within(span)
        assert parts is not None, "a slot that is cut has cuts for each of its spans"
        own = ((part.start - span.start, cut[self._shard.rank]) for part, cut in parts)
        return joined((before + start, before + stop) for before, (start, stop) in own)

    def own(self, span: Span, cut: Cut | None = None) -> Span:
        """Returns where a rank's own columns of a span are. cut: of a span whose slot is private."""
        slot = span.slot
        if self.kind(slot) == "local":
            parts = self.cuts.within(span)
            assert parts is not None, "a slot that is cut has cuts for each of its spans"
            before = (cut for other, cut in self.cuts.by_slot[slot.index].items() if other.start < span.start)
            width = sum(self.width(cut) for _, cut in parts)
            return Span(self._slots[slot.index], sum(map(self.width, before)), width)
        cut = cut or self.cuts.at(span)
        assert cut is not None, "columns are divided by a cut"
        return Span(slot, span.start + cut[self._shard.rank][0], self.width(cut))

    def view(self, span: Span) -> Slot:
        """Returns the slot that is just these columns."""
        if span == whole(span.slot):
            return span.slot
        if span not in self._views:
            self._views[span] = self._add(replace(span.slot, width=span.width, base=span.slot, start=span.start))
        return self._views[span]

    def twin(self, span: Span) -> Slot:
        """Returns a shared slot of this width, for columns that are copied into private slots."""
        key = (span.slot.extent, span.width)
        if key not in self._twins:
            self._twins[key] = self._add(Slot(0, span.slot.extent, span.width))
            self.kinds[self._twins[key].index] = "shared"
        return self._twins[key]

    def places_slot(self, experts: Slot) -> Slot:
        """Returns a private slot for the places of a row's experts, one for all mixtures that choose as many."""
        key = (experts.extent, experts.width)
        if key not in self._places:
            self._places[key] = self._add(replace(experts, base=None, start=0))
            self.kinds[self._places[key].index] = "private"
        return self._places[key]

    def _add(self, slot: Slot) -> Slot:
        added = replace(slot, index=len(self._slots))
        self._slots[added.index] = added
        return added

    def _local(self, slot: Slot) -> Slot:
        return replace(slot, width=sum(self.width(cut) for cut in self.cuts.by_slot[slot.index].values()))

    def _kind_of(self, slot: Slot, touched: Sequence[Touch]) -> SlotKind:
        if slot == self._given or self.cuts.is_whole(slot) or not all(map(self._is_cut, touched)):
            return "private"
        reads = [touch for touch in touched if touch.how in _READING]
        if slot not in self._outside and not reads:
            return "local"
        is_exact = all(self.cuts.at(touch.span) is not None for touch in touched if touch.how not in _READING)
        if is_exact and is_divided(self.cuts.by_slot[slot.index].values()):
            return "shared"
        can_copy = slot not in self._outside and all(touch.how == "take" and self._is_whole(touch) for touch in reads)
        return "local" if can_copy else "private"

    def _is_whole(self, touch: Touch) -> bool:
        """Says whether the ranks' own columns together are what is read, each once."""
        parts = self.cuts.within(touch.span)
        return parts is not None and is_divided(cut for _, cut in parts)

    def _is_cut(self, touch: Touch) -> bool:
        if touch.how in _READING:
            return True
        parts = self.cuts.within(touch.span)
        return touch.how != "write" and parts is not None and all(fits(cut, touch.unit) for _, cut in parts)


def joined(rows: Iterable[tuple[int, int]]) -> Rows:
    """Joins ranges that follow one another."""
    found: list[tuple[int, int]] = []
    for start, stop in rows:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return tuple(found)
