"""The memory of a program's activations on the device."""

import torch

from appliance.kernels.execution import Execution
from appliance.kernels.gpu.device import DTYPES, Device
from appliance.kernels.gpu.sizes import step_limits
from appliance.program.device_memory import place_slots, wide_slots
from appliance.program.operators import StepProgram
from appliance.program.slots import Slot


def place_activations(
    program: StepProgram, execution: Execution, dtype: torch.dtype, device: Device
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Allocates the activations: slots whose lifetimes do not overlap share memory."""
    limits = step_limits(execution.limits)
    placed = place_slots(program, limits, dtype.itemsize)
    wide = wide_slots(program)
    arena = device.zeros(placed.size_bytes, dtype=torch.uint8)

    def buffer(slot: Slot) -> torch.Tensor:
        """Logits are sampled from, and routing is decided, in f32."""
        own = dtype if slot.dtype == "f32" and slot.index not in wide else DTYPES[slot.dtype]
        start, rows = placed.offsets[slot.index], limits.rows[slot.extent]
        return arena[start : start + rows * slot.width * own.itemsize].view(own).view(rows, slot.width)

    found = {slot.index: buffer(slot) for slot in program.slots if slot.index in placed.offsets}
    views = [slot for slot in program.slots if slot.base is not None and slot.base.index in found]
    columns = {view.index: found[view.buffer.index][:, view.start : view.start + view.width] for view in views}
    return arena, found | columns
