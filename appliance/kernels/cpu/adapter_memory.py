"""The memory of adapters: for each slot the changes at every place of a program, one place after the other."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from appliance.kernels.adapter_checks import check_change
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.memory import MappedMemory
from appliance.kernels.cpu.operator_structs import AdapterMap
from appliance.kernels.errors import BindError
from appliance.kernels.interface import WeightChange
from appliance.program.adapters import Adapted, AdapterPlace, place_bytes
from appliance.program.operators import StepProgram

_TYPES: Mapping[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}
_BLOCK_COLUMNS = 64  # of a whole matrix that lie together; as in kernels/cpu/adapters.cpp


class AdapterMemory:
    """The slots of adapters, and for each operator the table of the changes at its places, which the program reads.
    The memory is not resident before an adapter is put."""

    def __init__(self, program: StepProgram, num_slots: int, dtype: str) -> None:
        """Maps the memory. Raises OSError if the system refuses it; BindError for a type of maps that is not here."""
        if dtype not in _TYPES:
            raise BindError(f"adapters are kept in {dtype!r}", hint="the CPU sets keep them in f32 or bf16")
        self.num_slots = num_slots
        self.layout = abi.LAYOUTS[dtype]
        self._dtype = dtype
        self._operators = [each for each in program.operators if isinstance(each, Adapted)]
        self._places = [each.places() for each in self._operators]
        self._slot_bytes = sum(place_bytes(place, dtype) for places in self._places for place in places)
        self._memory = MappedMemory(num_slots * self._slot_bytes)
        self._tables = [(AdapterMap * (num_slots * len(places)))() for places in self._places]
        self._ranks = [[np.zeros((num_slots, len(p.parts)), np.int32) for p in places] for places in self._places]
        self._widths = [np.array(places[0].widths, np.int32) for places in self._places]
        self._next = 0  # the operator that `encode` gives next

    @property
    def size_bytes(self) -> int:
        return self._memory.size_bytes

    def encode(self, operator: Adapted) -> tuple[int, int]:
        """Returns the addresses of the widths of the next operator's first place and of its table, in the program's
        order."""
        assert self._operators[self._next] is operator, "operators are encoded in order"
        index, self._next = self._next, (self._next + 1) % len(self._operators)  # a program may be made anew
        return int(self._widths[index].ctypes.data), ctypes.addressof(self._tables[index])

    def put(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        """Writes an adapter into a slot. Raises BindError before anything is written."""
        self._check(slot, changes)
        self._unlink(slot)
        offset = slot * self._slot_bytes
        for places, table, ranks in zip(self._places, self._tables, self._ranks, strict=True):
            for number, place in enumerate(places):
                own = [changes.get(part) for part in place.parts]
                entry = table[slot * len(places) + number]
                if any(own):
                    self._put_place(place, entry, ranks[number][slot], own, offset)
                offset += place_bytes(place, self._dtype)

    def drop(self, slot: int) -> None:
        """Empties a slot; its memory is not resident then, but for pages that it shares with its neighbours. Raises
        BindError if there is no such slot."""
        self._unlink(slot)
        self._memory.release(slot * self._slot_bytes, self._slot_bytes)

    def _unlink(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise BindError(f"there is no slot {slot} for adapters; there are {self.num_slots}")
        for places, table in zip(self._places, self._tables, strict=True):
            for entry in table[slot * len(places) : (slot + 1) * len(places)]:
                entry.ranks = None

    def _put_place(
        self,
        place: AdapterPlace,
        entry: AdapterMap,
        ranks: np.ndarray,
        changes: Sequence[WeightChange | None],
        offset: int,
    ) -> None:
        """Writes the changes of the parts of a place, and then points to them."""
        ranks[:] = [0 if each is None else each.rank for each in changes]
        written = _Writer(self._memory, offset, _TYPES[self._dtype])
        present = [each for each in changes if each is not None]
        whole = [each.up for each in present if each.down is None and each.up is not None]
        low = [(each.down, each.up) for each in present if each.down is not None and each.up is not None]
        if whole:
            entry.down = entry.up = written.all(_blocks(whole[0], place))
        elif place.is_table:
            ((down, up),) = low
            entry.down, entry.up = written.all([up]), written.all([down])
        else:
            entry.down = written.all([down for down, _ in low])
            entry.up = written.all([up.T for _, up in low])
        entry.is_whole = bool(whole)
        every = [each or WeightChange() for each in changes]
        entry.stretch = _vector(written, place, [each.stretch for each in every])
        entry.shift = _vector(written, place, [each.shift for each in every])
        entry.ranks = ranks.ctypes.data

    def _check(self, slot: int, changes: Mapping[str, WeightChange]) -> None:
        if not 0 <= slot < self.num_slots:
            raise BindError(f"there is no slot {slot} for adapters; there are {self.num_slots}")
        places = {part: place for places in self._places for place in places for part in place.parts}
        for name, own in changes.items():
            check_change(name, own, places, _TYPES[self._dtype])


class _Writer:
    """Writes arrays one after the other."""

    def __init__(self, memory: MappedMemory, offset: int, dtype: np.dtype) -> None:
        self._memory = memory
        self._offset = offset
        self._dtype = dtype

    def all(self, arrays: Sequence[np.ndarray]) -> int:
        """Writes arrays; returns the address of the first."""
        address = self._memory.address + self._offset
        for array in arrays:
            self._memory.numbers(self._offset, array.size, self._dtype)[:] = array.reshape(-1)
            self._offset += array.nbytes
        return int(address)


def _vector(written: _Writer, place: AdapterPlace, parts: Sequence[np.ndarray | None]) -> int | None:
    """Writes the vectors of all parts, zeros for those that have none; returns their address, or None if none has."""
    known = next((vector for vector in parts if vector is not None), None)
    if known is None:
        return None
    pairs = zip(place.widths, parts, strict=True)
    return written.all([np.zeros(width, known.dtype) if vector is None else vector for width, vector in pairs])


def _blocks(matrix: np.ndarray, place: AdapterPlace) -> list[np.ndarray]:
    """Returns a whole matrix in the order in which it is read: a table by rows, others by blocks of columns of out."""
    if place.is_table:
        return [matrix]
    return [matrix[at : at + _BLOCK_COLUMNS].T for at in range(0, len(matrix), _BLOCK_COLUMNS)]
