"""Finds the operators that a kernel set may fuse."""

from collections import Counter
from itertools import islice, pairwise

from appliance.program.operators import GatedActivation, LayerNorm, Linear, Operator, RmsNorm, StepProgram
from appliance.program.slots import Slot, Span

_USES = 3  # uses of a slot that a Linear writes once and a gated activation reads twice, half by half


def gates_of_linears(program: StepProgram) -> list[int]:
    """Returns the positions of gated activations that can be fused into the Linear before them: gate and up are its
    whole output, and no other operator reads it."""
    between = {at: _between(*pair) for at, pair in enumerate(pairwise(program.operators), 1)}
    found = {at: slot.index for at, slot in between.items() if slot is not None}
    pairs = Counter(found.values())
    uses = Counter(slot.index for op in program.operators for slot in op.slots())
    uses[program.logits.index] += 1
    return [at for at, slot in found.items() if uses[slot] == _USES * pairs[slot]]


def inputs_of_linears(program: StepProgram) -> list[int]:
    """Returns the positions of norms and gated activations whose output only the next Linear reads: a kernel set may
    write it in any form."""
    return [at for at in range(len(program.operators) - 1) if is_input_of_linear(program, at)]


def is_input_of_linear(program: StepProgram, at: int) -> bool:
    """Returns whether inputs_of_linears has this position. It must not be the last operator."""
    op, reader = program.operators[at : at + 2]
    if not isinstance(op, RmsNorm | LayerNorm | GatedActivation) or not isinstance(reader, Linear):
        return False
    slot = op.out
    if not _overwrites(op, slot) or reader.x != Span(slot, 0, slot.width) or reader.slots().count(slot) > 1:
        return False
    behind = islice(program.operators, at + 2, None)
    after = next((op for op in behind if any(each.index == slot.index for each in op.slots())), None)
    return slot not in (program.logits, program.kept) if after is None else _overwrites(after, slot)


def _overwrites(op: Operator, slot: Slot) -> bool:
    """Returns whether the operator writes the whole slot and does not read it."""
    return isinstance(op, RmsNorm | LayerNorm | GatedActivation) and op.out == slot and op.slots().count(slot) == 1


def _between(before: Operator, op: Operator) -> Slot | None:
    """Returns the slot that the Linear `before` fills with gate and up of the gated activation `op`; None if they are
    other operators."""
    if not isinstance(op, GatedActivation) or not isinstance(before, Linear):
        return None
    if before.bias is not None or before.activation is not None or before.accumulate:
        return None
    slot, half = op.gate.slot, op.gate.width
    halves = Span(slot, 0, half), Span(slot, half, half)
    fits = (op.gate, op.up) == halves and before.out == Span(slot, 0, slot.width) and slot.width == 2 * half
    return slot if fits else None
