"""Encodes spans of a program as the C structs of the ABI."""

from appliance.kernels.cpu import operator_structs as structs
from appliance.kernels.cpu.addresses import Addresses
from appliance.program.slots import Slot, Span


def c_span(value: Span | Slot | None, at: Addresses) -> structs.Span:
    if value is None:
        return structs.Span()
    span = Span(value.buffer, value.start, value.width) if isinstance(value, Slot) else value
    slot = span.slot
    data = at.slot(slot) + 4 * span.start
    return structs.Span(data=data, stride=slot.width, width=span.width, extent=structs.EXTENTS[slot.extent])
