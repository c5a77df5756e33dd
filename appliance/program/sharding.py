"""Makes of a program the one that each of several ranks runs.

A rank computes some rows of every matrix, and some heads of every attention, whole. No sum is divided, so its numbers
are those of a rank alone, to the bit. Where an operator reads what several ranks have computed, a `Gather` stands
before it. Experts are a rank's own or another's, whole, and so are rows of tables of embeddings. States are divided by
heads or columns. Norms and routers, which read whole rows, are computed by every rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from appliance.program.adapters import AdapterExperts, AdapterLinear, with_parts_of
from appliance.program.attention import HeadLinear
from appliance.program.cuts import alike, head_cuts, touches
from appliance.program.head_cuts import COLUMN_UNIT, Cut, even_cut
from appliance.program.operators import (
    Add,
    Copy,
    Embed,
    GatedActivation,
    HeadNorm,
    KvWrite,
    Linear,
    Operator,
    PagedAttention,
    Rope,
    ScaleByWeight,
    StepProgram,
    WholeAttention,
)
from appliance.program.placement import IN_ORDER, ExpertPlaces, ExpertPlacing, rows_of_experts
from appliance.program.ranks import Gather, Meet
from appliance.program.routing import Experts, MixExperts, PlaceExperts, SpreadExperts, rows_an_expert
from appliance.program.shard_layout import Rows, Shard, ShardLayout, joined
from appliance.program.slots import Slot, Span, whole
from appliance.program.state_cuts import own_state
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateShape, StateSpace


class WeightRows(NamedTuple):
    """The rows of a weight that a rank has; of a vector, its numbers."""

    source: str
    rows: Rows


class ShardedProgram(NamedTuple):
    """The program of a rank. rows: of its weights that are not whole, by their names in it. parts: the rows of logical
    weights that adapters change, where a rank has some only."""

    program: StepProgram
    rows: Mapping[str, WeightRows]
    parts: Mapping[str, tuple[int, int]]


def shard_program(
    program: StepProgram, shard: Shard, layout: ShardLayout | None = None, placing: ExpertPlacing = IN_ORDER
) -> ShardedProgram:
    """Returns the program of one rank. All ranks have the same operators in the same order, but for their widths.

    layout: of another program with the same slots and more operators, with which this one shares its memory.

    Raises UncutError if heads, columns or experts cannot be shared by so many ranks.
    """
    return _Sharder(program, shard, layout or ShardLayout(program, shard), placing).shard()


_Headed = PagedAttention | WholeAttention | HeadLinear


class _Sharder:
    def __init__(self, program: StepProgram, shard: Shard, layout: ShardLayout, placing: ExpertPlacing) -> None:
        self._given, self._shard, self._layout, self._placing = program, shard, layout, placing
        self._operators: list[Operator] = []
        self._rows: dict[str, WeightRows] = {}
        self._parts: dict[str, tuple[int, int]] = {}
        self._kv_heads: dict[int, int] = {}  # by cache
        self._states = list(program.states)
        self._pending: dict[int, dict[Span, Cut]] = {}  # columns of shared slots that not every rank knows
        self._being_read: set[int] = set()  # shared slots that another rank may still read
        self._wholes = {name for op in program.operators for name in self._read_whole(op)}

    def shard(self) -> ShardedProgram:
        for op in self._given.operators:
            self._emit(op)
        for slot in (self._given.logits, self._given.kept):
            if slot is not None:
                self._know(slot)
        caches = tuple(
            replace(shape, num_kv_heads=self._kv_heads.get(number, shape.num_kv_heads))
            for number, shape in enumerate(self._given.caches)
        )
        operators, slots = tuple(self._operators), self._layout.slots
        kept = {"caches": caches, "states": tuple(self._states), "shared": self._layout.shared}
        program = replace(self._given, operators=operators, slots=slots, **kept)
        return ShardedProgram(program, self._rows, self._parts)

    # What all ranks know

    def _know(self, slot: Slot) -> None:
        """Gathers what is not known of a slot that is read whole."""
        if self._layout.kind(slot) != "shared":
            return
        for span, cut in self._pending.pop(slot.index, {}).items():
            self._operators.append(Gather(span, (*(start for start, _ in cut), span.width)))
            self._being_read.clear()
        self._being_read.add(slot.index)

    def _taken(self, span: Span) -> Span:
        """Returns where all columns of a span are known, after gathering what is not."""
        if self._layout.kind(span.slot) != "local":
            self._know(span.slot)
            return span
        twin, parts = self._layout.twin(span), self._layout.cuts.within(span)
        assert parts is not None, "a slot that is cut has cuts for each of its spans"
        for part, cut in parts:
            there = Span(twin, part.start - span.start, part.width)
            self._will_write(there, cut)
            self._operators.append(Copy(self._layout.own(part), self._layout.own(there, cut)))
        self._know(twin)
        return whole(twin)

    def _will_write(self, span: Span, cut: Cut) -> None:
        """Notes that ranks write their columns of a shared slot next."""
        self._wait_for_readers(span.slot)
        self._pending.setdefault(span.slot.index, {})[span] = cut

    def _wait_for_readers(self, slot: Slot) -> None:
        if slot.index in self._being_read:
            self._operators.append(Meet())
            self._being_read.clear()

    # Operators

    def _emit(self, op: Operator) -> None:
        match op:
            case Linear():
                self._emit_linear(replace(op, x=self._taken(op.x)))
            case AdapterLinear() if self._layout.kind(op.out.slot) != "private":
                self._emit_adapter(replace(op, x=self._taken(op.x)))
            case AdapterLinear():
                self._emit_other(replace(op, x=self._taken(op.x)))
            case Embed() if self._is_divided(op):
                self._emit_embedding(op)
            case GatedActivation() if any(
                self._layout.kind(slot) != "private" for slot in (op.out, op.gate.slot, op.up.slot)
            ):
                self._emit_gated(op)
            case KvWrite():
                self._emit_keys(op)
            case PagedAttention() | HeadLinear() | WholeAttention() if head_cuts(op, 1):
                self._emit_heads(op)
            case GatedDelta() | StateSpace() if head_cuts(op, self._shard.num_ranks):
                self._emit_state(op)
            case RgLru():
                self._emit_recurrence(op)
            case Experts() if not isinstance(op, SpreadExperts):  # which the ranks of all replicas have divided before
                self._emit_experts(op)
            case _:
                self._emit_other(op)

    def _put(self, out: Span, cut: Cut, write: Callable[[Span], Operator], is_added: bool = False) -> None:
        """Emits what writes a rank's own columns of a span. is_added: to what a private span has."""
        kind = self._layout.kind(out.slot)
        if kind == "local":
            self._operators.append(write(self._layout.own(out)))
        elif kind == "shared":
            self._will_write(out, cut)
            self._operators.append(write(self._layout.own(out)))
        else:
            twin = self._layout.twin(out)
            self._will_write(whole(twin), cut)
            self._operators.append(write(self._layout.own(whole(twin), cut)))
            self._know(twin)
            self._operators.append(Add(twin, out.slot) if is_added else Copy(whole(twin), out))

    def _emit_linear(self, op: Linear) -> None:
        out, is_private = op.out, self._layout.kind(op.out.slot) == "private"
        if is_private and (out.width < self._shard.num_ranks or (op.accumulate and out != whole(out.slot))):
            self._operators.append(replace(op, weight=self._whole(op.weight)))
            return
        if is_private:
            cut = even_cut(out.width, self._shard.num_ranks, COLUMN_UNIT)
            rows: Rows = (cut[self._shard.rank],)
        else:
            rows, cut = self._layout.rows(out), self._cut_of(out)
        weight = self._some(op.weight, rows, out.width)
        bias = None if op.bias is None else self._some(op.bias, rows, out.width)
        made = replace(op, weight=weight, bias=bias, accumulate=op.accumulate and not is_private)
        self._put(out, cut, lambda own: replace(made, out=own), is_added=op.accumulate)

    def _emit_adapter(self, op: AdapterLinear) -> None:
        start, widths = op.out.start, list[int]()
        for name, width in zip(op.parts, op.widths, strict=True):
            (rows,) = self._layout.rows(Span(op.out.slot, start, width))
            self._parts[name] = rows
            widths.append(rows[1] - rows[0])
            start += width
        made = replace(op, widths=tuple(widths))
        self._put(op.out, self._cut_of(op.out), lambda own: replace(made, out=own))

    def _emit_gated(self, op: GatedActivation) -> None:
        cut = self._cut_alike(op)
        gate, up = (self._layout.own(span, cut) for span in (op.gate, op.up))
        self._put(whole(op.out), cut, lambda out: replace(op, gate=gate, up=up, out=self._layout.view(out)))

    def _emit_keys(self, op: KvWrite) -> None:
        own = self._own_heads(op)
        heads = own["k"].width // op.head_dim
        self._kv_heads[op.cache] = heads
        self._operators.append(replace(op, **own, num_kv_heads=heads))

    def _emit_heads(self, op: _Headed) -> None:
        own = self._own_heads(op)
        made = self._matrices_of(op, own) if isinstance(op, HeadLinear) else self._attention_of(op, own)
        out, cut = head_cuts(op, self._shard.num_ranks)["out"]
        self._put(out, cut, lambda span: replace(made, out=self._layout.view(span)))

    def _emit_embedding(self, op: Embed) -> None:
        """Emits the rows of a rank's own tokens, and what is known of the others'."""
        cut = even_cut(op.num_tokens, self._shard.num_ranks, COLUMN_UNIT)
        own, twin = cut[self._shard.rank], self._layout.twin(whole(op.out))
        self._wait_for_readers(twin)
        self._operators.append(replace(op, table=self._some(op.table, (own,), op.num_tokens), out=twin, own=own))
        starts = (*(start for start, _ in cut), op.num_tokens)
        self._operators.append(Gather(whole(twin), starts, by_token=True, missing_row=op.missing_row))
        self._being_read = {twin.index}
        self._operators.append(Copy(whole(twin), whole(op.out)))

    def _emit_state(self, op: GatedDelta | StateSpace) -> None:
        made, vectors = own_state(op, self._own_heads(op), self._shard.rank, self._shard.num_ranks)
        names = {
            field: self._some(getattr(op, field), rows, vectors.sizes[field]) for field, rows in vectors.rows.items()
        }
        made = replace(made, **names)
        self._states[op.state] = StateShape(made.state_shape)
        self._put(op.out, head_cuts(op, self._shard.num_ranks)["out"][1], lambda out: replace(made, out=out))

    def _emit_recurrence(self, op: RgLru) -> None:
        cut = self._cut_alike(op)
        own = {name: self._layout.own(getattr(op, name), cut) for name in ("x", "input_gate", "recurrence_gate")}
        rows = (cut[self._shard.rank],)
        names = {name: self._some(getattr(op, name), rows, op.x.width) for name in op.vectors}
        made = replace(op, **own, **names)
        self._states[op.state] = StateShape(made.state_shape)
        self._put(op.out, cut, lambda out: replace(made, out=out))

    def _emit_experts(self, op: Experts) -> None:
        """Emits a rank's own experts, what is known of the others', and the sum."""
        for slot in (op.x, op.experts, op.factors):
            self._know(slot)
        places, rank = self._placing.places(op.num_experts, self._shard.num_ranks), self._shard.rank
        outputs = self._layout.twin(Span(op.out, 0, op.num_chosen * op.out.width))
        names = {
            field: self._some(name, joined(rows_of_experts(places.of(rank), size)), op.num_experts * size)
            for field, (name, size) in rows_an_expert(op).items()
        }
        self._wait_for_readers(outputs)
        chosen, own = self._placed(op, places), (places.starts[rank], places.starts[rank + 1])
        made = replace(op, **names, experts=chosen, num_experts=len(places.experts), out=outputs, own=own)
        self._operators.append(self._own_experts(made, places.of(rank)))
        self._operators.append(Gather(whole(outputs), places.starts, chosen))
        self._being_read = {outputs.index}
        self._know(op.out)
        self._operators.append(MixExperts(outputs, op.factors, op.out, op.weigh_input))

    def _placed(self, op: Experts, places: ExpertPlaces) -> Slot:
        """Returns the slot of the places of the chosen experts, after emitting what finds them."""
        if self._placing.is_in_order:
            return op.experts
        out = self._layout.places_slot(op.experts)
        number = sum(isinstance(each, PlaceExperts) for each in self._operators)
        self._operators.append(PlaceExperts(op.experts, out, op.num_experts, places.experts, number))
        return out

    def _own_experts(self, op: Experts, experts: Sequence[int]) -> Experts:
        """Leaves of the places for adapters those of a rank's own experts."""
        if not isinstance(op, AdapterExperts):
            return op
        made = with_parts_of(op, experts)
        own = {*made.inner_parts, *made.down_parts}
        self._parts |= dict.fromkeys({*op.inner_parts, *op.down_parts} - own, (0, 0))
        return made

    def _own_heads(self, op: KvWrite | _Headed | GatedDelta | StateSpace) -> dict[str, Span]:
        """Returns a rank's own columns of the spans that are read by heads."""
        cuts = head_cuts(op, self._shard.num_ranks)
        return {name: self._layout.own(span, cut) for name, (span, cut) in cuts.items() if name != "out"}

    def _matrices_of(self, op: HeadLinear, own: Mapping[str, Span]) -> HeadLinear:
        start, stop = even_cut(op.num_heads, self._shard.num_ranks)[self._shard.rank]
        each = (op.out.width - (op.tail.width if op.tail else 0)) // op.num_heads
        weight = self._some(op.weight, ((start * each, stop * each),), each * op.num_heads)
        return replace(op, **own, num_heads=stop - start, weight=weight)

    def _attention_of(
        self, op: PagedAttention | WholeAttention, own: Mapping[str, Span]
    ) -> PagedAttention | WholeAttention:
        first, last = (at // op.head_dim for at in head_cuts(op, self._shard.num_ranks)["q"][1][self._shard.rank])
        heads = last - first
        if isinstance(op, WholeAttention):
            return replace(op, **own, num_heads=heads, num_kv_heads=own["k"].width // op.head_dim)
        sinks = None if op.sinks is None else self._some(op.sinks, ((first, last),), op.num_heads)
        slopes = None if op.slopes is None else op.slopes[first:last]
        num_kv_heads = self._kv_heads[op.cache]
        return replace(op, **own, num_heads=heads, num_kv_heads=num_kv_heads, sinks=sinks, slopes=slopes)

    def _emit_other(self, op: Operator) -> None:
        """Emits an operator in place on a rank's own columns if they are divided, or else whole on every rank."""
        touched = list(touches(op, self._shard.num_ranks))
        follows = [touch.span for touch in touched if touch.how == "follow"]
        if not follows or any(self._layout.kind(span.slot) == "private" for span in follows):
            for touch in touched:
                self._know(touch.span.slot)
            self._operators.append(op)
            return
        for span in follows:
            if self._layout.kind(span.slot) == "shared":
                self._will_write(span, self._cut_of(span))
        self._operators.append(self._following(op))

    def _following(self, op: Operator) -> Operator:
        own = self._layout.own
        match op:
            case HeadNorm():
                x, weight, bias = own(op.x), op.weight, op.bias
                if op.by_head:
                    rows, size = self._layout.rows(op.x), op.x.width
                    weight, bias = (None if name is None else self._some(name, rows, size) for name in (weight, bias))
                out = None if op.out is None else own(op.out)
                return replace(op, x=x, out=out, num_heads=x.width // op.head_dim, weight=weight, bias=bias)
            case Rope():
                x = own(op.x)
                return replace(op, x=x, num_heads=x.width // op.head_dim)
            case ShortConv():
                return self._own_conv(op)
            case ScaleByWeight():
                span = whole(op.x)
                weight = op.weight if op.is_one else self._some(op.weight, self._layout.rows(span), span.width)
                slot = self._layout.view(own(span))
                return replace(op, x=slot, out=slot, weight=weight)
            case _:
                changed: dict[str, Slot | Span] = {}
                for name in op.__struct_fields__:
                    value = getattr(op, name)
                    if isinstance(value, Slot):
                        changed[name] = self._layout.view(own(whole(value)))
                    elif isinstance(value, Span):
                        changed[name] = own(value)
                return replace(op, **changed)

    def _own_conv(self, op: ShortConv) -> ShortConv:
        x, columns, size = self._layout.own(op.x), self._layout.rows(op.x), op.kernel_size
        taps = tuple((start * size, stop * size) for start, stop in columns)
        weight = self._some(op.weight, taps, op.x.width * size)
        bias = None if op.bias is None else self._some(op.bias, columns, op.x.width)
        made = replace(op, x=x, out=x, weight=weight, bias=bias)
        self._states[op.state] = StateShape(made.state_shape)
        return made

    # Weights

    def _read_whole(self, op: Operator) -> Iterator[str]:
        """Yields the weights that every rank reads whole."""
        if isinstance(op, Embed) and self._is_divided(op):
            yield from op.named(("position_table",))
        elif not isinstance(op, Linear | HeadLinear | Experts):
            yield from op.named(op.matrices)

    def _is_divided(self, op: Embed) -> bool:
        return op.num_tokens >= self._shard.num_ranks

    def _cut_alike(self, op: GatedActivation | RgLru) -> Cut:
        cut = next((found for found in map(self._layout.cuts.at, reversed(alike(op))) if found), None)
        assert cut is not None, "columns that depend on each other are cut"
        return cut

    def _cut_of(self, span: Span) -> Cut:
        """Returns the cut of a span of a shared slot; of a local one that of its first part, which nothing gathers."""
        parts = self._layout.cuts.within(span)
        assert parts is not None, "a slot that is cut has cuts for each of its spans"
        return parts[0][1]

    def _whole(self, name: str) -> str:
        assert name not in self._rows, "a weight is whole for all linear maps or for none"
        self._wholes.add(name)
        return name

    def _some(self, name: str, rows: Rows, size: int) -> str:
        """Returns the name of some rows of a weight of `size` rows."""
        if rows == ((0, size),):
            return self._whole(name)
        wanted, new, number = WeightRows(name, rows), name, 0
        while new in self._wholes or self._rows.get(new, wanted) != wanted:
            number += 1
            new = f"{name}.rows{number}"
        self._rows[new] = wanted
        return new
