"""Places the activation slots in one arena: slots whose lifetimes do not overlap share memory."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import NamedTuple

import msgspec

from appliance.program.operators import StepProgram
from appliance.program.ranks import Gather, Meet
from appliance.program.slots import Extent, Slot

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class Arena(msgspec.Struct, frozen=True):
    """The byte offsets by slot index, and the total size."""

    offsets: Mapping[int, int]
    size_bytes: int


class Peak(NamedTuple):
    """The slots of one extent that are alive together at the widest place of a program."""

    slots: tuple[Slot, ...]

    @property
    def width(self) -> int:
        return sum(slot.width for slot in self.slots)


class Liveness(msgspec.Struct, frozen=True):
    """The lifetimes of slots: the positions of the first and last operator that use one. Logits, and what is kept,
    outlive the program; what is given is there before it."""

    slots: tuple[Slot, ...]  # the slots that operators use
    lifetimes: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, program: StepProgram) -> "Liveness":
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, operator in enumerate(program.operators):
            for slot in operator.slots():
                first.setdefault(slot.buffer.index, position)
                last[slot.buffer.index] = position
        for kept in (program.logits, program.kept):
            if kept is not None:
                last[kept.index] = len(program.operators)
                first.setdefault(kept.index, 0)
        if program.given is not None:
            first[program.given.index] = 0
            last.setdefault(program.given.index, 0)
        slots = tuple(slot for slot in program.slots if slot.index in first)
        return cls(slots, {index: (first[index], last[index]) for index in first})

    def private(self, program: StepProgram) -> "Liveness":
        """Returns the slots that a rank has for itself: all of a program of one rank."""
        return Liveness(tuple(slot for slot in self.slots if slot.index not in program.shared), self.lifetimes)

    def shared(self, program: StepProgram) -> "Liveness":
        """Returns the slots that ranks share, with lifetimes in meetings of all ranks: between two of these, one rank
        may write what another reads."""
        meetings = list(accumulate(isinstance(op, Gather | Meet) for op in program.operators))
        at = [0, *meetings, len(meetings)]  # before each operator; logits and what is kept outlive all
        slots = tuple(slot for slot in self.slots if slot.index in program.shared)
        lifetimes = {slot.index: tuple(at[place] for place in self.lifetimes[slot.index]) for slot in slots}
        # What outlives a step may still be read when another rank begins the next one, as steps of stages do.
        outside = {slot.index for slot in (program.logits, program.kept) if slot is not None}
        lifetimes |= {index: (0, last) for index, (_, last) in lifetimes.items() if index in outside}
        return Liveness(slots, {index: (first, last) for index, (first, last) in lifetimes.items()})

    def peak(self, extent: Extent) -> Peak:
        """Returns the peak of an extent. It is always at the start of some slot's lifetime."""
        slots = [slot for slot in self.slots if slot.extent is extent]
        places = sorted({self.lifetimes[slot.index][0] for slot in slots})
        peaks = (Peak(tuple(slot for slot in slots if self._is_alive(slot, place))) for place in places)
        return max(peaks, key=lambda peak: peak.width, default=Peak(()))

    def arena(self, slot_bytes: Callable[[Slot], int]) -> Arena:
        """Places slots of the given sizes in bytes: first fit, largest first."""
        placed: list[tuple[int, int, Slot]] = []  # offset, end
        offsets: dict[int, int] = {}
        for slot in sorted(self.slots, key=lambda each: (-slot_bytes(each), each.index)):
            alive = sorted((begin, end) for begin, end, other in placed if self._overlap(slot, other))
            size = -(-slot_bytes(slot) // ALIGNMENT) * ALIGNMENT
            offset = 0
            for begin, end in alive:
                if offset + size <= begin:
                    break
                offset = max(offset, end)
            offsets[slot.index] = offset
            placed.append((offset, offset + size, slot))
        return Arena(offsets, max((end for _, end, _ in placed), default=0))

    def _is_alive(self, slot: Slot, place: int) -> bool:
        first, last = self.lifetimes[slot.index]
        return first <= place <= last

    def _overlap(self, one: Slot, other: Slot) -> bool:
        (first, last), (other_first, other_last) = self.lifetimes[one.index], self.lifetimes[other.index]
        return other_first <= last and first <= other_last


def plan_arena(program: StepProgram, rows: Mapping[Extent, int]) -> Arena:
    """Returns the arena for the given number of rows of each extent; a rank has what is shared elsewhere."""
    return Liveness.of(program).private(program).arena(lambda slot: slot.row_bytes * rows[slot.extent])


def plan_shared_arena(program: StepProgram, rows: Mapping[Extent, int]) -> Arena:
    """Returns the arena that all ranks of a program share, which is the same for each of them."""
    return Liveness.of(program).shared(program).arena(lambda slot: slot.row_bytes * rows[slot.extent])
