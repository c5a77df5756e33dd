"""Cuts a program into stages of consecutive layers, each of which other ranks run.

A stage is a program like any other. What it reads of the layers before it is `given` to it, and what later layers read
is `kept`: drafting heads use the same seams, so a kernel set needs nothing new for stages.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec.structs import replace

from appliance.program.adapters import AdapterEmbed, AdapterLinear
from appliance.program.caches import KvGroup, KvLayout
from appliance.program.head_cuts import UncutError
from appliance.program.operators import Add, Copy, KvWrite, Linear, Operator, PagedAttention, StepProgram
from appliance.program.routing import ChooseExperts, GatedAdd
from appliance.program.slots import Extent, Slot, Span, whole
from appliance.program.states import GatedDelta, RgLru, ShortConv, StateSpace

_LAYER = re.compile(r"layers\.(\d+)\.")
_ADDED = (Add, GatedAdd, AdapterLinear, AdapterEmbed)  # what they write to `out` is added to what it has
_CARRIED = ShortConv | GatedDelta | StateSpace | RgLru


class Stage(NamedTuple):
    """One of several stages. layers: how many each of them has."""

    number: int
    layers: tuple[int, ...]

    @property
    def is_last(self) -> bool:
        return self.number == len(self.layers) - 1


class StagedProgram(NamedTuple):
    """The program of a stage. groups: by number, those of the whole program's groups of caches that it has."""

    program: StepProgram
    groups: tuple[int, ...]


def layer_of(weight: str) -> int | None:
    """Returns the layer of a weight by its name; None of one that no layer has for itself."""
    found = _LAYER.match(weight)
    return None if found is None else int(found[1])


def num_places(num_stages: int) -> int:
    """Returns for how many steps there is memory: those in flight, and one that a late rank may still read."""
    return num_stages + 1


def even_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """Divides layers among stages. Where some are left over, the stages before the last have one more each, as the last
    has the output head. Raises UncutError if a stage would have no layer."""
    if count > num_layers:
        raise UncutError(f"{num_layers} layers cannot be shared by {count} stages")
    each, over = divmod(num_layers, count)
    return tuple(each + (count - 1 - over <= stage < count - 1) for stage in range(count))


def stage_program(program: StepProgram, stage: Stage, beside: StepProgram | None = None) -> StagedProgram:
    """Returns the program of one stage.

    beside: the program with places for adapters, or the one without: both hand on the same, and have the same slots.

    Raises UncutError if a layer reads the cache of a layer in another stage.
    """
    if program.given is not None:
        raise UncutError("a program that is given states has no stages")
    starts = _starts(program, stage.layers)
    both = [each for each in (program, beside) if each is not None]
    slots = list(max(both, key=lambda each: len(each.slots)).slots)
    before, after = (_handed_on(both, stage.layers, at) for at in (stage.number, stage.number + 1))
    given, opening = _mail(before, slots)
    kept, closing = _mail(after, slots)
    logits = program.logits
    if not stage.is_last:
        logits = _appended(slots, Slot(0, Extent.SAMPLED, 1))  # a program has logits; nothing writes these
    staged = replace(
        program,
        operators=(
            *(Copy(part, whole(slot)) for slot, part in opening),
            *program.operators[starts[stage.number] : starts[stage.number + 1]],
            *(Copy(whole(slot), part) for slot, part in closing),
        ),
        slots=tuple(slots),
        logits=logits,
        kept=program.kept if stage.is_last else kept,
        given=given,
    )
    return _with_own_caches(staged, staged_layout(program, stage.layers))


def staged_layout(program: StepProgram, layers: Sequence[int]) -> KvLayout:
    """Returns which caches of the whole program share block tables. Raises UncutError like `stage_program`."""
    starts = _starts(program, layers)
    written = {op.cache: at for at, op in enumerate(program.operators) if isinstance(op, KvWrite)}
    stages = [bisect_right(starts, written[cache]) - 1 for cache in range(len(program.caches))]
    return KvLayout.of(program.caches, stages)


def _starts(program: StepProgram, layers: Sequence[int]) -> list[int]:
    """Returns where each stage begins, and where the last one ends. Raises UncutError if layers are not in order."""
    first: dict[int, int] = {}
    for position, op in enumerate(program.operators):
        for name in op.named((*op.matrices, *op.vectors)):
            if (layer := layer_of(name)) is not None:
                first.setdefault(layer, position)
    wanted = [0, *accumulate(layers)]
    if sorted(first, key=first.__getitem__) != sorted(first) or not set(wanted[1:-1]) <= first.keys():
        raise UncutError("the layers of this model do not follow one another")
    return [0, *(first[layer] for layer in wanted[1:-1]), len(program.operators)]


def _mail(handed: Sequence[Slot], slots: list[Slot]) -> tuple[Slot | None, list[tuple[Slot, Span]]]:
    """Returns the slot that is handed on, and which of its columns are those of which slots, where it has several."""
    if len(handed) <= 1:
        return (handed[0] if handed else None), []
    ends = list(accumulate(slot.width for slot in handed))
    mail = _appended(slots, Slot(0, Extent.TOKENS, ends[-1]))
    return mail, [(slot, Span(mail, end - slot.width, slot.width)) for slot, end in zip(handed, ends, strict=True)]


def _appended(slots: list[Slot], slot: Slot) -> Slot:
    slots.append(replace(slot, index=len(slots)))
    return slots[-1]


# What later layers read


def _handed_on(programs: Sequence[StepProgram], layers: Sequence[int], number: int) -> list[Slot]:
    """Returns the slots that the stages from `number` on read, and those before it have written."""
    if number in (0, len(layers)):
        return []
    found = {slot.index: slot for each in programs for slot in _read_behind(each, _starts(each, layers)[number])}
    for slot in found.values():
        if slot.extent is not Extent.TOKENS or slot.dtype != "f32":
            raise UncutError("a stage hands on f32 rows of tokens alone")
    return [found[index] for index in sorted(found)]


def _read_behind(program: StepProgram, position: int) -> Iterator[Slot]:
    """Yields the slots that operators before a position write, and from it on one reads before it is written again."""
    written = {slot.buffer.index: slot.buffer for op in program.operators[:position] for slot in op.slots()}
    unread = {index: _Columns(slot.width) for index, slot in written.items()}
    for op in program.operators[position:]:
        reads, writes = _uses(op)
        for span in reads:
            columns = unread.get(span.slot.index)
            if columns is not None and not columns.has(span):
                yield written[span.slot.index]
                del unread[span.slot.index]
        for span in writes:
            if span.slot.index in unread:
                unread[span.slot.index].add(span)
    for kept in (program.logits, program.kept):
        if kept is not None and kept.index in unread and not unread[kept.index].has(whole(kept)):
            yield kept


class _Columns:
    """The columns of a slot that were written."""

    def __init__(self, width: int) -> None:
        self._is_written = bytearray(width)

    def add(self, span: Span) -> None:
        self._is_written[span.start : span.start + span.width] = b"\1" * span.width

    def has(self, span: Span) -> bool:
        return all(self._is_written[span.start : span.start + span.width])


def _uses(op: Operator) -> tuple[list[Span], list[Span]]:
    """Returns what an operator reads, and what it writes without reading it. In doubt it reads."""
    outputs = {"experts", "factors"} if isinstance(op, ChooseExperts) else {"out"}
    if isinstance(op, _ADDED) or (isinstance(op, Linear) and op.accumulate):
        outputs = set()
    reads: list[Span] = []
    writes: list[Span] = []
    for name in op.__struct_fields__:
        value = getattr(op, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Slot | Span):
                (writes if name in outputs else reads).append(whole(each) if isinstance(each, Slot) else each)
    return reads, writes


# Caches and states


def _with_own_caches(program: StepProgram, layout: KvLayout) -> StagedProgram:
    """Returns the program with the caches and states that its operators use, and no others."""
    written = [op.cache for op in program.operators if isinstance(op, KvWrite)]
    if foreign := {op.cache for op in program.operators if isinstance(op, PagedAttention)} - {*written}:
        raise UncutError(f"its layers read {len(foreign)} caches of layers in another stage")
    caches = sorted(set(written))
    states = sorted(op.state for op in program.operators if isinstance(op, _CARRIED))
    groups = tuple(at for at, group in enumerate(layout.groups) if not set(caches).isdisjoint(group.caches))
    own = [
        KvGroup(
            layout.groups[at].window, tuple(caches.index(each) for each in layout.groups[at].caches if each in caches)
        )
        for at in groups
    ]
    renumbered = replace(
        program,
        operators=tuple(_renumbered(op, caches, states) for op in program.operators),
        caches=tuple(program.caches[number] for number in caches),
        states=tuple(program.states[number] for number in states),
        layout=KvLayout(tuple(own), max((len(group.caches) for group in own), default=0)),
    )
    return StagedProgram(renumbered, groups)


def _renumbered(op: Operator, caches: Sequence[int], states: Sequence[int]) -> Operator:
    match op:
        case KvWrite() | PagedAttention():
            return replace(op, cache=caches.index(op.cache))
        case ShortConv() | GatedDelta() | StateSpace() | RgLru():
            return replace(op, state=states.index(op.state))
        case _:
            return op
