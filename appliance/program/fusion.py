"""Which operators a kernel set may do in one."""

from collections import Counter
from itertools import islice, pairwise

from appliance.program.operators import GatedActivation, LayerNorm, Linear, Operator, RmsNorm, StepProgram
from appliance.program.slots import Slot, Span

_USES = 3  # of a slot that a Linear writes and a gated activation reads, a half at a time


def gates_of_linears(program: StepProgram) -> list[int]:
    """Positions of the gated activations whose gate and up are all that the Linear before them writes, and that nobody
    else reads: that Linear may write what they would, and leave its own output alone."""
    between = {at: _between(*pair) for at, pair in enumerate(pairwise(program.operators), 1)}
    found = {at: slot.index for at, slot in between.items() if slot is not None}
    pairs = Counter(found.values())
    uses = Counter(slot.index for op in program.operators for slot in op.slots())
    uses[program.logits.index] += 1
    return [at for at, slot in found.items() if uses[slot] == _USES * pairs[slot]]


def inputs_of_linears(program: StepProgram) -> list[int]:
    """Positions of the norms and gated activations whose output the Linear behind them reads, and nobody else: it need
    not be written as these would."""
    return [at for at in range(len(program.operators) - 1) if is_input_of_linear(program, at)]


def is_input_of_linear(program: StepProgram, at: int) -> bool:
    """Whether inputs_of_linears has this position, which is not the last."""
    op, reader = program.operators[at : at + 2]
    if not isinstance(op, RmsNorm | LayerNorm | GatedActivation) or not isinstance(reader, Linear):
        return False
    slot = op.out
    if not _overwrites(op, slot) or reader.x != Span(slot, 0, slot.width) or reader.slots().count(slot) > 1:
        return False
    behind = islice(program.operators, at + 2, None)
    after = next((op for op in behind if any(each.index == slot.index for each in op.slots())), None)
    return slot != program.logits if after is None else _overwrites(after, slot)


def _overwrites(op: Operator, slot: Slot) -> bool:
    """Whether it writes the whole of the slot, and reads nothing of it."""
    return isinstance(op, RmsNorm | LayerNorm | GatedActivation) and op.out == slot and op.slots().count(slot) == 1


def _between(before: Operator, op: Operator) -> Slot | None:
    """The slot that the Linear `before` fills with the gate and up of `op`; None where they are something else."""
    if not isinstance(op, GatedActivation) or not isinstance(before, Linear):
        return None
    if before.bias is not None or before.activation is not None or before.accumulate:
        return None
    slot, half = op.gate.slot, op.gate.width
    halves = Span(slot, 0, half), Span(slot, half, half)
    fits = (op.gate, op.up) == halves and before.out == Span(slot, 0, slot.width) and slot.width == 2 * half
    return slot if fits else None
