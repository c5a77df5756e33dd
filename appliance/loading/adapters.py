"""Loads an adapter: what it adds to each logical weight of a model, and that all of it has a place."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from appliance.base.errors import ApplianceError
from appliance.checkpoint.adapter import AdapterFacts, AdapterModule
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.reader import TensorReader
from appliance.kernels.interface import LowRankMap
from appliance.layers.spec import WeightSource
from appliance.loading.formats.bits import Array
from appliance.loading.formats.dense import narrow
from appliance.loading.formats.translate import StoredRows
from appliance.models.adapters import trained_weights


class AdapterError(ApplianceError):
    """An adapter does not fit the model. The message names the tensor."""


class AdapterPlaces(msgspec.Struct, frozen=True):
    """The places of a model for adapters. shapes: of each logical weight that has one. sources: where transformers
    keeps these weights, because adapters are trained there; they may lie elsewhere in the model's own checkpoint."""

    shapes: Mapping[str, tuple[int, int]]
    sources: Mapping[str, WeightSource]
    max_rank: int

    @classmethod
    def of(
        cls, facts: ModelFacts, max_model_len: int, shapes: Mapping[str, tuple[int, int]], max_rank: int
    ) -> "AdapterPlaces":
        sources = trained_weights(facts, max_model_len)
        return cls(shapes, {name: sources[name] for name in shapes}, max_rank)

    def by_module(self) -> dict[str, list[str]]:
        """Returns the logical weights of each module of transformers that has a place."""
        found: dict[str, list[str]] = {}
        for name, source in self.sources.items():
            found.setdefault(source.tensor.removesuffix(".weight"), []).append(name)
        return found


def load_adapter(adapter: AdapterFacts, places: AdapterPlaces, dtype: str) -> dict[str, LowRankMap]:
    """Returns what the adapter adds to each logical weight, in "f32" or "bf16".

    Raises AdapterError if a module has no place, has another shape or too high a rank, or if a number is not finite.
    """
    modules = places.by_module()
    maps: dict[str, LowRankMap] = {}
    with TensorReader(Path(adapter.root), adapter.tensors()) as reader:
        for module in adapter.modules:
            names = modules.get(module.name)
            if names is None:
                raise AdapterError(_no_place(module, modules), hint=_names_of(modules))
            maps |= _module_maps(module, {name: places.sources[name] for name in names}, places, reader, dtype)
    return maps


def _module_maps(
    module: AdapterModule, sources: Mapping[str, WeightSource], places: AdapterPlaces, reader: TensorReader, dtype: str
) -> Iterator[tuple[str, LowRankMap]]:
    """Yields the maps of the logical weights that are rows of a module."""
    if module.rank > places.max_rank:
        message = f"{module.down.name} has rank {module.rank}, and the slots are for ranks up to {places.max_rank}"
        raise AdapterError(message, hint=f"set lora.max_rank: {module.rank}")
    down = _values(module.down, WeightSource(module.down.name), reader)
    covered = 0
    for name, source in sources.items():
        up = np.float32(module.scale) * _rows_of(module.up, name, source, reader)
        shape = up.shape[0], down.shape[1]
        if shape != places.shapes[name]:
            message = f"{module.name}: the adapter is of a weight {shape}, and {name} is {places.shapes[name]}"
            raise AdapterError(message, hint="it was trained on another base model")
        covered += up.shape[0]
        yield name, LowRankMap(narrow(down, dtype), narrow(up, dtype))
    if covered != module.up.shape[0]:
        raise AdapterError(f"{module.up.name} has {module.up.shape[0]} rows, and {covered} of them have a place")


def _rows_of(up: TensorFacts, name: str, source: WeightSource, reader: TensorReader) -> Array:
    """Returns the rows of lora_B that belong to a logical weight, as f32. A transposed weight is of a Conv1D, of which
    adapters are not transposed."""
    if source.transform not in ("none", "transpose") or source.index is not None:
        raise AdapterError(f"{up.name}: {name} is kept in another order, for which there is no adapter in this version")
    if source.rows is not None and source.rows[1] > up.shape[0]:
        raise AdapterError(f"{up.name} has {up.shape[0]} rows, and {name} needs more")
    return _values(up, replace(source, tensor=up.name, transform="none"), reader)


def _values(tensor: TensorFacts, source: WeightSource, reader: TensorReader) -> Array:
    """Returns a tensor's rows as f32."""
    rows = StoredRows(tensor, source, reader.read)
    values = rows.values(0, len(rows))
    if not np.isfinite(values).all():
        raise AdapterError(f"{tensor.name} has a number that is not finite")
    return values


def _no_place(module: AdapterModule, modules: Mapping[str, list[str]]) -> str:
    return f"{module.down.name}: the model has no place for an adapter of {module.name}"


def _names_of(modules: Mapping[str, list[str]]) -> str:
    kinds = sorted({name.rpartition(".")[2] for name in modules})
    return f"there are places at {', '.join(kinds)}, such as {min(modules)}"
