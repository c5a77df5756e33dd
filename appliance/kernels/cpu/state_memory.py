"""The memory of recurrent states: the slots of each state, one state after the other."""

import ctypes
from collections.abc import Sequence

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.memory import MappedMemory
from appliance.program.states import StateShape

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class StateMemory:
    """The memory of all slots of all states. It is zeroed, and not resident before it is written."""

    def __init__(self, num_slots: int, shapes: Sequence[StateShape]) -> None:
        """Maps the memory. Raises OSError if the system refuses it."""
        self._num_slots = num_slots
        self.states: ctypes.Array[abi.State] = (abi.State * len(shapes))()
        sizes = [-(-num_slots * shape.size_bytes // _ALIGNMENT) * _ALIGNMENT for shape in shapes]
        self.memory = MappedMemory(sum(sizes))
        address = self.memory.address
        for state, shape, size in zip(self.states, shapes, sizes, strict=True):
            state.data, state.size = address, shape.size_bytes // 4
            address += size

    def slots(self) -> list[np.ndarray]:
        """Returns the slots of each state, uint8 [num_slots, bytes]: views that keep the memory alive."""
        first = self.memory.address
        return [
            self.memory.numbers(state.data - first, self._num_slots * 4 * state.size, np.dtype(np.uint8)).reshape(
                self._num_slots, -1
            )
            for state in self.states
        ]

    @property
    def size_bytes(self) -> int:
        return self.memory.size_bytes
