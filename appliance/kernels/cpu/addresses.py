"""The addresses of a bound program's slots and weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from appliance.kernels.cpu.adapter_memory import AdapterMemory
from appliance.kernels.cpu.memory import MappedMemory
from appliance.kernels.cpu.weights import BoundWeights
from appliance.kernels.expert_tables import ExpertTable
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import Ranks, pages
from appliance.program.operators import StepProgram
from appliance.program.slots import Extent, Slot
from appliance.program.spreading import SpreadMemory


class SpreadPlace(NamedTuple):
    """The memory that replicas share, where it has what, and for how many rows of each."""

    lockstep: Lockstep
    memory: MappedMemory
    at: SpreadMemory
    rows: Mapping[Extent, int]

    @classmethod
    def of(cls, program: StepProgram, lockstep: Lockstep | None, rows: Mapping[Extent, int]) -> "SpreadPlace | None":
        """Maps it; None for a program that has all of its experts."""
        spread = SpreadMemory.of(program, rows)
        if lockstep is None or not spread.size_bytes:
            return None
        ranks, size = lockstep.ranks, spread.size_bytes
        memory = MappedMemory(size, ranks.memory.map(ranks.arena_offset, pages(size)))
        return cls(lockstep, memory, spread, rows)

    @property
    def share_bytes(self) -> int:
        """What one replica has of it: the part for its own rows."""
        return self.at.share_bytes(self.lockstep.num_replicas)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a bound program's slots and weights."""

    arena: MappedMemory
    offsets: Mapping[int, int]  # in the arena, by slot index
    weights: BoundWeights
    constants: list[np.ndarray] = field(default_factory=list)  # kept alive for the program, which reads them
    adapters: AdapterMemory | None = None  # of a program with places for them
    shared: MappedMemory | None = None  # by ranks, with these slots
    shared_offsets: Mapping[int, int] = field(default_factory=dict)
    ranks: Ranks | None = None
    spread: SpreadPlace | None = None  # of the experts that replicas have among them
    tables: Mapping[int, ExpertTable] = field(default_factory=dict)  # of the mixtures whose experts have places

    def slot(self, slot: Slot) -> int:
        """Returns the address of a buffer."""
        memory, offset = self.place(slot)
        return memory.address + offset

    def place(self, slot: Slot) -> tuple[MappedMemory, int]:
        """Returns the memory of a buffer, and where in it the buffer is."""
        if self.shared is not None and slot.index in self.shared_offsets:
            return self.shared, self.shared_offsets[slot.index]
        return self.arena, self.offsets[slot.index]

    @property
    def memories(self) -> tuple[MappedMemory, ...]:
        """Returns the memory of all buffers; no step needs anything that the one before left there."""
        return (self.arena,) if self.shared is None else (self.arena, self.shared)

    def matrix(self, name: str) -> int:
        return self.weights.matrix(name)

    def vector(self, name: str | None, size: int) -> int | None:
        """Returns the address of an f32 [size] vector; None for no name. Raises BindError if it has another size."""
        return None if name is None else self.weights.vector(name, size)

    def numbers(self, values: Sequence[float]) -> int:
        """Returns the address of the values in f32, which live as long as this object."""
        self.constants.append(np.array(values, np.float32))
        return int(self.constants[-1].ctypes.data)

    def table(self, name: str, columns: int) -> np.ndarray:
        """Returns an f32 [rows, columns] array that stays alive. Raises BindError for another number of columns."""
        return self.weights.table(name, columns)

    def rows(self, name: str, rows: int) -> np.ndarray:
        """Returns an f32 [rows, columns] array that stays alive. Raises BindError for another number of rows."""
        return self.weights.rows(name, rows)
