"""The adapters that are kept in the engine's memory, to be put into slots."""

import dataclasses
import mmap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.base.errors import ApplianceError
from appliance.checkpoint.adapter import read_adapter
from appliance.engine.adapter_stacks import is_stack, parts_of, stacked
from appliance.kernels.interface import WeightChange
from appliance.loading.adapters import load_adapter
from appliance.models.adapter_places import AdapterPlaces
from appliance.plan.types import AdapterPlan

_ALIGNMENT = 64  # bytes: a cache line
_BY_COLUMNS = ("up",)  # as slots hold them, so that a slot is written by copying


class AdapterChangedError(ApplianceError):
    """The files of an adapter are not those that were planned."""


@dataclass(frozen=True, slots=True)
class KeptAdapter:
    """An adapter in memory. maps: what it adds, by logical weight. effective_modules: the maps that are not zero."""

    maps: Mapping[str, WeightChange]
    effective_modules: int
    size_bytes: int


class AdapterStore:
    """Adapters by digest. `places`: those of the bound program; dtype: of the maps, "f32" or "bf16"."""

    def __init__(self, places: AdapterPlaces, dtype: str) -> None:
        self._places = places
        self._dtype = dtype
        self._kept: dict[str, KeptAdapter] = {}

    @property
    def size_bytes(self) -> int:
        """The memory of all adapters that are kept."""
        return sum(each.size_bytes for each in self._kept.values())

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._kept

    def load(self, adapter: AdapterPlan) -> None:
        """Reads an adapter, unless its content is here; another thread may use the others meanwhile.

        Raises AdapterChangedError, CheckpointError, AdapterError.
        """
        if adapter.sha256 in self._kept:
            return
        facts = read_adapter(Path(adapter.path))
        if facts.sha256 != adapter.sha256:
            message = f"adapter {adapter.name}: the files at {adapter.path} are not those that were planned"
            raise AdapterChangedError(message, hint="plan again: appliance plan")
        self._kept[adapter.sha256] = _kept(load_adapter(facts, self._places, self._dtype))

    def kept(self, sha256: str) -> KeptAdapter:
        return self._kept[sha256]

    def maps(self, sha256: str) -> Mapping[str, WeightChange]:
        """Returns what an adapter adds, or the adapters of a stack together, by logical weight."""
        if is_stack(sha256):
            return stacked(parts_of(sha256), self.maps, self._dtype)
        return self._kept[sha256].maps

    def keep_only(self, digests: Collection[str]) -> None:
        """Forgets the other adapters; their memory goes back to the system."""
        for digest in self._kept.keys() - digests:
            del self._kept[digest]


def _kept(maps: Mapping[str, WeightChange]) -> KeptAdapter:
    """Moves the arrays into one mapping of memory, which is given back as a whole: an allocator might keep it."""
    size = sum(_aligned(array.nbytes) for each in maps.values() for _, array in _arrays(each))
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    moved: dict[str, WeightChange] = {}
    offset = 0
    for name, each in maps.items():
        own = {}
        for field, array in _arrays(each):
            numbers = np.frombuffer(memory, array.dtype, array.size, offset)
            own[field] = numbers.reshape(array.shape, order="F" if field in _BY_COLUMNS else "C")
            own[field][...] = array
            offset += _aligned(array.nbytes)
        moved[name] = dataclasses.replace(each, **own)
    return KeptAdapter(moved, sum(not each.is_zero for each in moved.values()), size)


def _arrays(each: WeightChange) -> Iterator[tuple[str, np.ndarray]]:
    for field in dataclasses.fields(each):
        value = getattr(each, field.name)
        if isinstance(value, np.ndarray):
            yield field.name, value


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
