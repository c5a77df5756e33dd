"""What adapters add to a Linear, by torch: adapter after adapter, over the rows that have it."""

import torch

from appliance.kernels.gpu.step import DeviceStep
from appliance.program.adapters import AdapterLinear


def adapter_linear(op: AdapterLinear, step: DeviceStep) -> None:
    given, adapters, device = step.arrays.host.adapters, step.bound.adapters, step.bound.device
    assert given is not None, "the step has adapters"
    assert adapters is not None, "the program was bound with places"
    x, out, of = step.span(op.x).float(), step.span(op.out), step.sequence_of(op.x.slot.extent)
    slots, scales = device.put(given.slots)[of], device.put(given.scales)[of][:, None]
    for slot in sorted({slot for slot in given.slots.tolist() if slot >= 0}):
        start = 0
        for part, width in op.shapes():
            maps = adapters.maps(slot, part)
            if maps is not None:
                down, up = (each.float() for each in maps)
                added = scales * (x @ down.T @ up.T)
                out[:, start : start + width] += torch.where((slots == slot)[:, None], added, 0.0).to(out.dtype)
            start += width
