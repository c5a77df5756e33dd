"""The adapters that are in slots, on the device."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from appliance.kernels.adapter_checks import check_change
from appliance.kernels.errors import BindError
from appliance.kernels.gpu.device import Device
from appliance.kernels.interface import WeightChange
from appliance.program.adapters import place_bytes, places_of
from appliance.program.operators import StepProgram


class DeviceChange(NamedTuple):
    """A WeightChange whose arrays are tensors, f32 or bf16."""

    down: torch.Tensor | None
    up: torch.Tensor | None
    stretch: torch.Tensor | None
    shift: torch.Tensor | None


class DeviceAdapters:
    """Changes by slot and logical weight."""

    def __init__(self, program: StepProgram, max_loras: int, dtype: str, device: Device) -> None:
        places = list(places_of(program.operators))
        self._places = {part: place for place in places for part in place.parts}
        self._slots: list[dict[str, DeviceChange]] = [{} for _ in range(max_loras)]
        self._device = device
        self._dtype = np.dtype(np.uint16 if dtype == "bf16" else np.float32)
        self.size_bytes = max_loras * sum(place_bytes(place, dtype) for place in places)

    def put(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        """Copies an adapter to the device. Raises BindError for a slot, a weight, a shape or a rank without a place."""
        self._check_slot(slot)
        for name, each in changes.items():
            check_change(name, each, self._places, self._dtype)
        self._slots[slot] = {name: self._copied(each) for name, each in changes.items()}

    def drop(self, slot: int) -> None:
        self._check_slot(slot)
        self._slots[slot] = {}

    def change(self, slot: int, weight: str) -> DeviceChange | None:
        """Returns what the adapter in a slot changes of a weight; None if it leaves it."""
        return self._slots[slot].get(weight)

    def _copied(self, each: WeightChange) -> DeviceChange:
        arrays = (each.down, each.up, each.stretch, each.shift)
        return DeviceChange(*(None if array is None else self._floats(array) for array in arrays))

    def _floats(self, array: np.ndarray) -> torch.Tensor:
        """bf16 comes as uint16, which torch takes as bits."""
        if array.dtype == np.uint16:
            return self._device.put(array.view(np.int16)).view(torch.bfloat16)
        return self._device.put(array)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._slots):
            raise BindError(f"there is no slot {slot} for an adapter, of {len(self._slots)}")
