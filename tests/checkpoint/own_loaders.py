"""Loaders of weights, as the types of base.plugin_types say them: one that works, and some that do not."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from appliance.base.plugin_types import StoredTensor
from appliance.checkpoint.safetensors import read_folder
from appliance.checkpoint.storage import SAFETENSORS_TYPES

_SPELLED = {storage: dtype for dtype, storage in SAFETENSORS_TYPES.items()}


class OfSafetensors:
    """Reads the file of the folder `at`, as bytes."""

    def __init__(self, folder: str, options: Mapping[str, Any]) -> None:
        self._root = Path(folder) / options.get("at", ".")
        self._tensors = {tensor.name: tensor for tensor in read_folder(self._root)[0]}

    def tensors(self) -> Mapping[str, StoredTensor]:
        return {name: StoredTensor(_SPELLED[each.storage], each.shape) for name, each in self._tensors.items()}

    def read(self, name: str, /) -> Any:
        tensor = self._tensors[name]
        with (self._root / tensor.file).open("rb") as file:
            file.seek(tensor.offset_bytes)
            return file.read(tensor.size_bytes)


class Npz(OfSafetensors):
    """Another path of the same."""


class Lies(OfSafetensors):
    def read(self, name: str, /) -> Any:
        tensor = self._tensors[name]
        return np.zeros((*tensor.shape, 1), np.float32)


class Short(OfSafetensors):
    def read(self, name: str, /) -> Any:
        return super().read(name)[:-4]


class OtherType(OfSafetensors):
    def read(self, name: str, /) -> Any:
        return np.zeros(self._tensors[name].shape, np.int32)


class NoBytes(OfSafetensors):
    def read(self, name: str, /) -> Any:
        return 3


class Raises(OfSafetensors):
    def read(self, name: str, /) -> Any:
        raise LookupError(f"no {name} on the shelf")


class Leaves(OfSafetensors):
    def read(self, name: str, /) -> Any:
        raise SystemExit(3)


class Hangs(OfSafetensors):
    def read(self, name: str, /) -> Any:
        while True:
            time.sleep(0.01)


class Nothing:
    def __init__(self, folder: str, options: Mapping[str, Any]) -> None: ...


class NeverMade:
    def __init__(self) -> None: ...


class NoShape(OfSafetensors):
    def tensors(self) -> Any:
        return dict.fromkeys(self._tensors, 7)


class NoType(OfSafetensors):
    def tensors(self) -> Any:
        return dict.fromkeys(self._tensors, ("F7", (1,)))


class NoSize(OfSafetensors):
    def tensors(self) -> Any:
        return dict.fromkeys(self._tensors, ("F32", (-1,)))


class NoMapping(OfSafetensors):
    def tensors(self) -> Any:
        return [*self._tensors]


class Misshapen(OfSafetensors):
    def tensors(self) -> Any:
        return {**super().tensors(), "model.norm.weight": ("F32", (7,))}
