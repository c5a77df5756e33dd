"""The tensors that a loader of the operator's own reads. What it answers is checked."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from appliance.checkpoint.custom import CustomLoader
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.last_read import LastRead
from appliance.checkpoint.reader import Bytes
from appliance.checkpoint.storage import NUMPY_TYPES

_BITS: Final = ("bf16", "f8_e4m3", "f8_e5m2")  # NumPy has no such types: any of their size will do


class CustomTensors:
    """The tensors that a loader reads, as a source of tensors."""

    def __init__(self, facts: ModelFacts) -> None:
        self._loader = CustomLoader(Path(facts.root), facts.loader)
        self._tensors = {part.name: part for tensor in facts.tensors for part in tensor.parts}
        self._last = LastRead()

    def read(self, name: str) -> Bytes:
        return self._last.read(name, partial(_checked, self._loader, self._tensors[name]))

    def will_need(self, name: str) -> None:
        """Does nothing: the loader is asked when its tensor is needed."""

    def release(self, name: str, start: int, stop: int) -> None:
        """Forgets a tensor with its last byte."""
        if stop >= self._tensors[name].size_bytes:
            self._last.forget(name)


def _checked(loader: CustomLoader, tensor: TensorFacts) -> Bytes:
    """Returns the bytes of a tensor, uint8 [size_bytes]. Raises CheckpointError."""
    found = loader.read(tensor)
    try:
        array = found if isinstance(found, np.ndarray) else np.frombuffer(found, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise loader.wrong(f"read({tensor.name!r}) answered {type(found).__name__}, and no bytes") from error
    if isinstance(found, np.ndarray) and not _fits(found, tensor):
        shape = f"{found.dtype} of shape {found.shape}"
        raise loader.wrong(f"read({tensor.name!r}) answered {shape}, and {tensor.storage} {tensor.shape} was said")
    if array.nbytes != tensor.size_bytes:
        problem = f"answered {array.nbytes} bytes, and {tensor.storage} {tensor.shape} has {tensor.size_bytes}"
        raise loader.wrong(f"read({tensor.name!r}) {problem}")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _fits(array: np.ndarray[Any, Any], tensor: TensorFacts) -> bool:
    wanted = np.dtype(NUMPY_TYPES[tensor.storage])
    is_type = array.dtype.itemsize == wanted.itemsize if tensor.storage in _BITS else array.dtype == wanted
    return bool(is_type and array.shape == tensor.shape)
