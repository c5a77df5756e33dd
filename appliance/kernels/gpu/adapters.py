"""The adapters that are in slots, on the device."""

from collections.abc import Mapping

import numpy as np
import torch

from appliance.kernels.errors import BindError
from appliance.kernels.gpu.device import Device
from appliance.kernels.interface import LowRankMap
from appliance.program.adapters import AdapterLinear, adapter_slot_bytes
from appliance.program.operators import StepProgram


class DeviceAdapters:
    """Low-rank maps by slot and logical weight."""

    def __init__(self, program: StepProgram, max_loras: int, dtype: str, device: Device) -> None:
        places = [op for op in program.operators if isinstance(op, AdapterLinear)]
        self._shapes = {part: (width, op.x.width, op.max_rank) for op in places for part, width in op.shapes()}
        self._slots: list[dict[str, tuple[torch.Tensor, torch.Tensor]]] = [{} for _ in range(max_loras)]
        self._device = device
        self.size_bytes = max_loras * adapter_slot_bytes(places, dtype)

    def put(self, slot: int, maps: Mapping[str, LowRankMap]) -> None:
        """Copies an adapter to the device. Raises BindError for a slot, a weight, a shape or a rank without a place."""
        self._check_slot(slot)
        for name, each in maps.items():
            self._check(name, each)
        self._slots[slot] = {name: (self._floats(each.down), self._floats(each.up)) for name, each in maps.items()}

    def drop(self, slot: int) -> None:
        self._check_slot(slot)
        self._slots[slot] = {}

    def maps(self, slot: int, weight: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns `down` f32 or bf16 [r, D] and `up` [n, r] of the adapter in a slot; None if it leaves the weight."""
        return self._slots[slot].get(weight)

    def _floats(self, array: np.ndarray) -> torch.Tensor:
        """bf16 comes as uint16, which torch takes as bits."""
        if array.dtype == np.uint16:
            return self._device.put(array.view(np.int16)).view(torch.bfloat16)
        return self._device.put(array)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._slots):
            raise BindError(f"there is no slot {slot} for an adapter, of {len(self._slots)}")

    def _check(self, name: str, each: LowRankMap) -> None:
        if name not in self._shapes:
            raise BindError(f"there is no place for an adapter of {name}")
        width, columns, max_rank = self._shapes[name]
        rank = len(each.down)
        if each.down.shape != (rank, columns) or each.up.shape != (width, rank) or not 0 < rank <= max_rank:
            shapes = f"{each.down.shape} and {each.up.shape}"
            raise BindError(f"{name} takes [r, {columns}] and [{width}, r], r at most {max_rank}; these are {shapes}")
