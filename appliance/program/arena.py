"""Where each activation slot lies in one arena: slots whose lifetimes do not overlap share memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.program.operators import StepProgram

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True, slots=True)
class Arena:
    """Byte offsets by slot index, and the size of the whole."""

    offsets: Mapping[int, int]
    size_bytes: int


def plan_arena(program: StepProgram, slot_bytes: Mapping[int, int]) -> Arena:
    """Places slots of the given sizes; first fit, largest first. The logits outlive the program."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, operator in enumerate(program.operators):
        for slot in operator.slots():
            first.setdefault(slot.index, position)
            last[slot.index] = position
    last[program.logits.index] = len(program.operators)
    first.setdefault(program.logits.index, 0)
    placed: list[tuple[int, int, int]] = []  # offset, end, slot index
    offsets: dict[int, int] = {}
    for index in sorted(first, key=lambda i: (-slot_bytes[i], i)):
        alive = sorted((o, e) for o, e, other in placed if first[other] <= last[index] and first[index] <= last[other])
        size = -(-slot_bytes[index] // ALIGNMENT) * ALIGNMENT
        offset = 0
        for begin, end in alive:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append((offset, offset + size, index))
    return Arena(offsets, max((end for _, end, _ in placed), default=0))
