"""The tensors that a loader of the operator's own reads. What it answers is checked."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from appliance.checkpoint.custom import CustomLoader
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.reader import Bytes
from appliance.checkpoint.storage import NUMPY_TYPES

_KEPT: Final = 2  # tensors that are read piece by piece, and not asked for again for each piece
_BITS: Final = ("bf16", "f8_e4m3", "f8_e5m2")  # NumPy has no such types: any of their size will do


class CustomTensors:
    """The tensors that a loader reads, as a source of tensors."""

    def __init__(self, facts: ModelFacts) -> None:
        self._loader = CustomLoader(Path(facts.root), facts.loader)
        self._tensors = {part.name: part for tensor in facts.tensors for part in tensor.parts}
        self._kept: dict[str, Bytes] = {}
        self._lock = threading.Lock()  # several threads may read weights

    def read(self, name: str) -> Bytes:
        with self._lock:
            if name not in self._kept:
                while len(self._kept) >= _KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[name] = _checked(self._loader, self._tensors[name])
            return self._kept[name]

    def will_need(self, name: str) -> None:
        """Does nothing: the loader is asked when its tensor is needed."""

    def release(self, name: str, start: int, stop: int) -> None:
        """Forgets a tensor with its last byte."""
        with self._lock:
            if stop >= self._tensors[name].size_bytes:
                self._kept.pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.clear()


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
