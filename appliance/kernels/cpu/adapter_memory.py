"""The memory of adapters: for each slot the maps of every place of a program, one place after the other."""

import ctypes
from collections.abc import Iterable, Mapping

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.memory import MappedMemory
from appliance.kernels.cpu.operator_structs import AdapterMap
from appliance.kernels.errors import BindError
from appliance.kernels.interface import LowRankMap
from appliance.program.adapters import AdapterLinear, adapter_slot_bytes, place_bytes
from appliance.program.operators import StepProgram

_TYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}


class AdapterMemory:
    """The slots of adapters, and for each place the table of their maps that the program reads. The memory is not
    resident before an adapter is put."""

    def __init__(self, program: StepProgram, num_slots: int, dtype: str) -> None:
        """Maps the memory. Raises OSError if the system refuses it; BindError for a type of maps that is not here."""
        if dtype not in _TYPES:
            raise BindError(f"adapters are kept in {dtype!r}", hint="the CPU sets keep them in f32 or bf16")
        self.num_slots = num_slots
        self.layout = abi.LAYOUTS[dtype]
        self._dtype = dtype
        self._places = [operator for operator in program.operators if isinstance(operator, AdapterLinear)]
        self._slot_bytes = adapter_slot_bytes(program.operators, dtype)
        self._memory = MappedMemory(num_slots * self._slot_bytes)
        self._tables = [(AdapterMap * num_slots)() for _ in self._places]
        self._ranks = [np.zeros((num_slots, len(place.parts)), np.int32) for place in self._places]
        self._widths = [np.array(place.widths, np.int32) for place in self._places]
        self._next = 0  # the place that `encode` gives next

    @property
    def size_bytes(self) -> int:
        return self._memory.size_bytes

    def encode(self, place: AdapterLinear) -> tuple[int, int]:
        """Returns the addresses of the widths and of the maps of the next place, in the program's order."""
        assert self._places[self._next] is place, "places are encoded in order"
        index, self._next = self._next, self._next + 1
        return int(self._widths[index].ctypes.data), ctypes.addressof(self._tables[index])

    def put(self, slot: int, maps: Mapping[str, LowRankMap]) -> None:
        """Writes an adapter into a slot. Raises BindError before anything is written."""
        self._check(slot, maps)
        self._unlink(slot)
        offset = slot * self._slot_bytes
        for place, table, ranks in zip(self._places, self._tables, self._ranks, strict=True):
            own = [maps.get(part) for part in place.parts]
            self._put_place(table[slot], ranks[slot], own, offset)
            offset += place_bytes(place, self._dtype)

    def drop(self, slot: int) -> None:
        """Empties a slot; its memory is not resident then, but for pages that it shares with its neighbours. Raises
        BindError if there is no such slot."""
        self._unlink(slot)
        self._memory.release(slot * self._slot_bytes, self._slot_bytes)

    def _unlink(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise BindError(f"there is no slot {slot} for adapters; there are {self.num_slots}")
        for table in self._tables:
            table[slot].down = None

    def _put_place(self, entry: AdapterMap, ranks: np.ndarray, maps: list[LowRankMap | None], offset: int) -> None:
        """Writes the maps of the parts of a place, and then points to them."""
        present = [each for each in maps if each is not None]
        if not present:
            return
        ranks[:] = [0 if each is None else each.down.shape[0] for each in maps]
        end = self._write(offset, (each.down for each in present))
        self._write(end, (each.up.T for each in present))
        address = self._memory.address
        entry.down, entry.up, entry.ranks = address + offset, address + end, ranks.ctypes.data

    def _write(self, offset: int, matrices: Iterable[np.ndarray]) -> int:
        """Writes matrices one after the other; returns where they end."""
        for matrix in matrices:
            self._memory.numbers(offset, matrix.size, matrix.dtype)[:] = matrix.reshape(-1)
            offset += matrix.nbytes
        return offset

    def _check(self, slot: int, maps: Mapping[str, LowRankMap]) -> None:
        shapes = {part: (width, place.x.width) for place in self._places for part, width in place.shapes()}
        ranks = {part: place.max_rank for place in self._places for part in place.parts}
        for name, own in maps.items():
            if name not in shapes:
                raise BindError(f"there is no place for an adapter of {name}")
            if {own.down.dtype, own.up.dtype} != {_TYPES[self._dtype]}:
                raise BindError(f"an adapter of {name} is in {own.down.dtype} and {own.up.dtype}, not {self._dtype}")
            rank = own.down.shape[0]
            if (own.up.shape[0], own.down.shape[1]) != shapes[name] or own.up.shape[1] != rank:
                raise BindError(
                    f"an adapter of {name} is {own.up.shape} @ {own.down.shape}, and the weight {shapes[name]}"
                )
            if not 0 < rank <= ranks[name]:
                raise BindError(f"an adapter of {name} has rank {rank}; the slots are for ranks up to {ranks[name]}")
