"""The adapters that are in slots, on the device."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import torch

from appliance.kernels.adapter_checks import check_change
from appliance.kernels.errors import BindError
from appliance.kernels.gpu.device import Device
from appliance.kernels.interface import WeightChange
from appliance.program.adapters import AdapterLinear, place_bytes, places_of
from appliance.program.operators import StepProgram

TABLE_ENTRIES: Final = 5


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
        self._linears = {op.parts[0]: op for op in program.operators if isinstance(op, AdapterLinear)}
        parts = [part for op in self._linears.values() for part in op.parts]
        self._numbers = {part: number for number, part in enumerate(parts)}
        self._table = np.zeros((len(parts), max_loras, TABLE_ENTRIES), np.int64)
        for op in self._linears.values():
            starts = np.cumsum((0, *op.widths))
            for part, start, width in zip(op.parts, starts.tolist(), op.widths, strict=False):
                self._table[self._numbers[part], :, 3:] = start, width
        self._on_device = device.put(self._table)
        self.kind = device.zeros(1, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)  # of the maps' type
        self._not_low: list[set[str]] = [set() for _ in range(max_loras)]  # parts that not only low-rank maps change
        self._dtype = np.dtype(np.uint16 if dtype == "bf16" else np.float32)
        self.size_bytes = max_loras * sum(place_bytes(place, dtype) for place in places)

    def put(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        """Copies an adapter to the device. Raises BindError for a slot, a weight, a shape or a rank without a place."""
        self._check_slot(slot)
        for name, each in changes.items():
            check_change(name, each, self._places, self._dtype)
        self._slots[slot] = {name: self._copied(each) for name, each in changes.items()}
        self._enter(slot)

    def drop(self, slot: int) -> None:
        self._check_slot(slot)
        self._slots[slot] = {}
        self._enter(slot)

    def table(self, op: AdapterLinear) -> torch.Tensor:
        """Returns int64 [parts, slots, TABLE_ENTRIES] of an operator: the addresses of down and up, their rank, 0 for
        none, and the part's first column and width."""
        first = self._numbers[op.parts[0]]
        return self._on_device[first : first + len(op.parts)]

    def are_low_rank(self, op: AdapterLinear, slots: Iterable[int]) -> bool:
        """Says whether the adapters in these slots change an operator by low-rank maps alone."""
        return all(self._not_low[slot].isdisjoint(op.parts) for slot in slots)

    def can_capture(self, slots: np.ndarray) -> bool:
        """Says whether graphs hold what the adapters in these slots change of products: low-rank maps alone, of which
        a graph reads the addresses from the table."""
        return not any(self._not_low[slot] for slot in set(slots.tolist()) if slot >= 0)

    def enter_all(self) -> None:
        """Writes all addresses anew, after maps were moved."""
        for slot in range(len(self._slots)):
            self._enter(slot)

    def _enter(self, slot: int) -> None:
        """Writes the addresses of a slot's maps to the table."""
        self._table[:, slot, :3] = 0
        self._not_low[slot] = {
            name for name, each in self._slots[slot].items()
            if each.down is None or each.stretch is not None or each.shift is not None
        }  # fmt: skip
        for name, each in self._slots[slot].items():
            if name in self._numbers and each.down is not None and each.up is not None:
                self._table[self._numbers[name], slot, :3] = each.down.data_ptr(), each.up.data_ptr(), len(each.down)
        self._on_device.copy_(torch.from_numpy(self._table))

    def change(self, slot: int, weight: str) -> DeviceChange | None:
        """Returns what the adapter in a slot changes of a weight; None if it leaves it."""
        return self._slots[slot].get(weight)

    def tensors(self) -> list[torch.Tensor]:
        """Returns what all slots hold."""
        changes = (change for slot in self._slots for change in slot.values())
        return [part for change in changes for part in change if part is not None]

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
