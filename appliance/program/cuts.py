"""How the columns of activations are divided among ranks: found from what reads and writes them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from appliance.program.adapters import AdapterLinear
from appliance.program.attention import HeadLinear, ScaleByPosition
from appliance.program.head_cuts import COLUMN_UNIT, Cut, even_cut, kv_heads_cut, query_heads_cut, scaled
from appliance.program.operators import (
    Activation,
    GatedActivation,
    HeadNorm,
    KvWrite,
    Linear,
    Operator,
    PagedAttention,
    Rope,
    Scale,
    ScaleByWeight,
    SoftCap,
    StepProgram,
    WholeAttention,
)
from appliance.program.slots import Slot, Span, whole
from appliance.program.state_cuts import state_cuts
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace

How = Literal["cut", "follow", "take", "read", "write"]


class Touch(NamedTuple):
    """Columns that an operator reads or writes, and how: `cut`, its own columns alone if they are divided; `follow`, in
    place and column by column or head by head; `take`, all of them at once, wherever they are; `read` and `write`, all
    of them at once in this very slot."""

    span: Span
    how: How
    unit: int = 1  # of `follow`: columns that stay together


@dataclass(slots=True)
class Cuts:
    """The cuts of a program's spans, by slot. broken: slots with spans that cannot be cut alike in all of it."""

    count: int
    by_slot: dict[int, dict[Span, Cut]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    _taken: dict[int, set[int]] = field(default_factory=dict)  # where what linear maps read begins and ends

    @classmethod
    def of(cls, program: StepProgram, count: int) -> "Cuts":
        """Raises UncutError if heads cannot be shared by so many ranks."""
        cuts = cls(count)
        for op in program.operators:
            cuts._define(op)
            if isinstance(op, Linear):
                cuts._taken.setdefault(op.x.slot.index, set()).update((op.x.start, op.x.start + op.x.width))
        for op in program.operators:
            cuts._fill(op)
        return cuts

    def at(self, span: Span) -> Cut | None:
        """Returns the cut of exactly this span."""
        return self.by_slot.get(span.slot.index, {}).get(span)

    def within(self, span: Span) -> list[tuple[Span, Cut]] | None:
        """Returns the cut spans that together are this one, in order; None if there are none such."""
        known = self.by_slot.get(span.slot.index, {})
        parts = sorted((each for each in known if _contains(span, each)), key=lambda each: each.start)
        at = span.start
        for part in parts:
            if part.start != at:
                return None
            at += part.width
        return [(part, known[part]) for part in parts] if parts and at == span.start + span.width else None

    def is_whole(self, slot: Slot) -> bool:
        """Says whether the slot has no cut that all its operators agree on."""
        spans = sorted(self.by_slot.get(slot.index, {}), key=lambda each: each.start)
        overlaps = any(one.start + one.width > other.start for one, other in pairwise(spans))
        return slot.index in self.broken or not spans or overlaps

    def _put(self, span: Span, cut: Cut) -> None:
        known = self.by_slot.setdefault(span.slot.index, {})
        if known.setdefault(span, cut) != cut:
            self.broken.add(span.slot.index)

    def _define(self, op: Operator) -> None:
        """Cuts what an operator divides by heads, or makes of cut columns."""
        if isinstance(op, GatedActivation | RgLru):
            spans = alike(op)
            known = next((cut for cut in map(self.at, spans) if cut is not None), None)
            for span in spans:
                self._put(span, known or even_cut(span.width, self.count, COLUMN_UNIT))
        for span, cut in head_cuts(op, self.count).values():
            self._put(span, cut)

    def _fill(self, op: Operator) -> None:
        """Cuts what a linear map writes evenly, where nothing else says how."""
        if not isinstance(op, Linear) or self.within(op.out) is not None:
            return
        gaps = self._gaps(op.out)
        if not gaps or any(gap.width < self.count for gap in gaps):
            self.broken.add(op.out.slot.index)
            return
        for gap in gaps:
            self._put(gap, even_cut(gap.width, self.count, COLUMN_UNIT))

    def _gaps(self, span: Span) -> list[Span]:
        """Returns what is not cut of a span, in the pieces in which it is read; nothing if it overlaps with what is cut
        beyond it."""
        known = sorted(self.by_slot.get(span.slot.index, {}), key=lambda each: each.start)
        inside = [each for each in known if _overlap(span, each)]
        if not all(_contains(span, each) for each in inside):
            return []
        ends = {span.start, span.start + span.width}
        ends |= {end for end in self._taken.get(span.slot.index, ()) if span.start < end < span.start + span.width}
        ends |= {end for each in inside for end in (each.start, each.start + each.width)}
        pieces = [Span(span.slot, start, stop - start) for start, stop in pairwise(sorted(ends))]
        return [piece for piece in pieces if not any(_overlap(piece, each) for each in inside)]


def head_cuts(op: Operator, count: int) -> dict[str, tuple[Span, Cut]]:
    """Returns the spans, by field, that an operator divides by heads. Raises UncutError if it cannot."""
    match op:
        case KvWrite():
            heads = kv_heads_cut(op.num_kv_heads, count)
            keys = {"k": (op.k, scaled(heads, op.head_dim))}
            return keys if op.v is None else keys | {"v": (op.v, scaled(heads, op.value_dim or op.head_dim))}
        case PagedAttention():
            heads = query_heads_cut(op.num_heads, op.num_kv_heads, count)
            return {
                "q": (op.q, scaled(heads, op.head_dim)),
                "out": (whole(op.out), scaled(heads, op.value_width)),
            }
        case WholeAttention() if op.bias is None:
            heads = scaled(query_heads_cut(op.num_heads, op.num_kv_heads, count), op.head_dim)
            kv = scaled(kv_heads_cut(op.num_kv_heads, count), op.head_dim)
            return {"q": (op.q, heads), "k": (op.k, kv), "v": (op.v, kv), "out": (whole(op.out), heads)}
        case HeadLinear():
            heads = even_cut(op.num_heads, count)
            spans = {"x": op.x, "out": whole(op.out), **({} if op.tail is None else {"tail": op.tail})}
            return {name: (span, scaled(heads, span.width // op.num_heads)) for name, span in spans.items()}
        case GatedDelta() | StateSpace():
            return state_cuts(op, count)
        case _:
            return {}


def alike(op: GatedActivation | RgLru) -> tuple[Span, ...]:
    """Returns the spans of an operator whose columns each depend on the same columns of the others."""
    if isinstance(op, GatedActivation):
        return (op.gate, op.up, whole(op.out))
    return (op.x, op.input_gate, op.recurrence_gate, op.out)


def touches(op: Operator, count: int) -> Iterator[Touch]:
    """Yields what an operator that so many ranks run reads and writes of each slot. Raises UncutError like
    head_cuts."""
    if heads := head_cuts(op, count):
        yield from (Touch(span, "cut") for span, _ in heads.values())
        return
    match op:
        case Linear():
            yield Touch(op.x, "take")
            yield Touch(op.out, "cut")
        case GatedActivation() | RgLru():
            yield from (Touch(span, "cut") for span in alike(op))
        case ShortConv() if op.x == op.out:
            yield Touch(op.x, "follow")
        case HeadNorm() if op.num_heads > 1:
            yield from (Touch(span, "follow", op.head_dim) for span in (op.x, op.out) if span is not None)
        case Rope():
            yield Touch(op.x, "follow", op.head_dim)
        case ScaleByPosition() | Scale():
            yield Touch(op.x, "follow")
        case SoftCap():
            yield Touch(whole(op.x), "follow")
        case ScaleByWeight() if op.x == op.out:
            yield Touch(whole(op.x), "follow")
        case Activation() if op.x == op.out and op.parameters is None:
            yield Touch(whole(op.x), "follow")
        case AdapterLinear():
            yield Touch(op.x, "take")
            yield Touch(op.out, "follow")
        case _:
            yield from _at_once(op)


# What operators that are never divided read only; whatever else they name, they write.
_READS: Mapping[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "RmsNorm": "x", "LayerNorm": "x", "HeadNorm": "x", "Add": "x", "Copy": "x", "GatherRows": "x", "MeanRows": "x",
        "Activation": "x", "ScaleByWeight": "x", "ShortConv": "x", "GatedDelta": "q k v decay beta",
        "StateSpace": "x b c dt", "RgLru": "x input_gate recurrence_gate", "ChooseExperts": "logits",
        "Experts": "x experts factors", "AdapterExperts": "x experts factors", "GatedAdd": "x gate",
        "SpreadExperts": "x experts factors", "PlaceExperts": "experts",
        "MatchMagnitude": "reference", "CorrectStreams": "target coefficients", "MixStreams": "coefficients",
        "WholeAttention": "q k v",
    }.items()
}  # fmt: skip


def _at_once(op: Operator) -> Iterator[Touch]:
    reads = _READS.get(type(op).__name__, frozenset())
    is_in_place = getattr(op, "out", op) is None
    for name in op.__struct_fields__:
        value = getattr(op, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Slot | Span):
                span = whole(each) if isinstance(each, Slot) else each
                yield Touch(span, "read")
                if name not in reads or is_in_place:
                    yield Touch(span, "write")


def slots_touched(program: StepProgram, count: int) -> Mapping[int, list[Touch]]:
    """Returns every touch of each slot by so many ranks."""
    found: dict[int, list[Touch]] = {}
    for op in program.operators:
        for touch in touches(op, count):
            found.setdefault(touch.span.slot.index, []).append(touch)
    return found


def _contains(span: Span, other: Span) -> bool:
    return span.start <= other.start and other.start + other.width <= span.start + span.width


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.start + other.width and other.start < one.start + one.width


def fits(cut: Cut, unit: int) -> bool:
    """Says whether every rank has whole units."""
    return all(start % unit == 0 and stop % unit == 0 for start, stop in cut)


def is_divided(spans: Iterable[Cut]) -> bool:
    """Says whether no two ranks have the same columns."""
    return all(one[1] == other[0] for cut in spans for one, other in pairwise(cut))
