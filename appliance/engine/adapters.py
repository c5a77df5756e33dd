"""The adapters that are kept in the engine's memory, to be put into slots."""

from collections.abc import Mapping
from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.base.log import fields, logger
from appliance.checkpoint.adapter import read_adapter
from appliance.kernels.interface import LowRankMap
from appliance.loading.adapters import AdapterPlaces, load_adapter
from appliance.plan.types import AdapterPlan

_log = logger("engine")


class AdapterChangedError(ApplianceError):
    """The files of an adapter are not those that were planned."""


class AdapterStore:
    """Adapters by digest. `places`: those of the bound program; dtype: of the maps, "f32" or "bf16"."""

    def __init__(self, places: AdapterPlaces, dtype: str) -> None:
        self._places = places
        self._dtype = dtype
        self._maps: dict[str, Mapping[str, LowRankMap]] = {}

    def load(self, adapter: AdapterPlan) -> None:
        """Reads an adapter, unless its content is here. Raises AdapterChangedError, CheckpointError, AdapterError."""
        if adapter.sha256 in self._maps:
            return
        facts = read_adapter(Path(adapter.path))
        if facts.sha256 != adapter.sha256:
            message = f"adapter {adapter.name}: the files at {adapter.path} are not those that were planned"
            raise AdapterChangedError(message, hint="plan again: appliance plan")
        maps = load_adapter(facts, self._places, self._dtype)
        if not any(each.up.any() and each.down.any() for each in maps.values()):
            _log.warning("an adapter adds nothing: its matrices are zero", extra=fields(adapter=adapter.name))
        self._maps[adapter.sha256] = maps

    def maps(self, sha256: str) -> Mapping[str, LowRankMap]:
        """Returns what an adapter adds, by logical weight."""
        return self._maps[sha256]
