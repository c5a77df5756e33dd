"""Reads a checkpoint by a loader of the operator's own (`loading.load_format: custom`), and checks all that it says."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy as np

from appliance.base.bounded import BoundedCalls, StoppedError, TookTooLongError
from appliance.base.hashing import sha256_json
from appliance.base.plugin_types import WeightLoader
from appliance.base.plugins import PluginError, load_plugin
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.loader_choice import LoaderChoice
from appliance.checkpoint.reader import Bytes
from appliance.checkpoint.safetensors import MAX_DIMENSIONS, is_size
from appliance.checkpoint.storage import NUMPY_TYPES, SAFETENSORS_TYPES, stored_bytes

FIELD: Final = "loading.loader_cls"
TIMEOUT_S: Final = 60.0
_BYTES_A_SECOND: Final = 10_000_000  # fewer than any store gives; large tensors get as much more time
_KEPT: Final = 2  # tensors that are read piece by piece, and not asked for again for each piece
_BITS: Final = ("bf16", "f8_e4m3", "f8_e5m2")  # NumPy has no such types: any of their size will do

T = TypeVar("T")


class CustomLoader:
    """The operator's loader of one folder: each call takes a bounded time, and one is made at a time."""

    def __init__(self, root: Path, choice: LoaderChoice) -> None:
        """Raises PluginError or CheckpointError."""
        assert choice.path is not None, "a rule of the spec"
        self._path = choice.path
        self._calls, self._lock = BoundedCalls(TIMEOUT_S), threading.Lock()
        make = load_plugin(self._path, FIELD)
        self._own: WeightLoader = self._run(lambda: make(str(root), dict(choice.options)))
        missing = [name for name in ("tensors", "read") if not callable(getattr(self._own, name, None))]
        if missing:
            raise PluginError(f"{FIELD}: {self._path} is no loader: it has no {', '.join(missing)}")

    def tensors(self) -> tuple[TensorFacts, ...]:
        """Returns the tensors by their names. Raises CheckpointError."""
        said: Any = self._run(self._own.tensors)
        if not isinstance(said, Mapping):
            raise self._wrong(f"tensors answered {type(said).__name__}, and no mapping")
        return tuple(self._tensor(name, said[name]) for name in sorted(said, key=str))

    def read(self, tensor: TensorFacts) -> Bytes:
        """Returns the bytes of a tensor, uint8 [size_bytes]. Raises CheckpointError."""
        found: Any = self._run(partial(self._own.read, tensor.name), tensor.size_bytes / _BYTES_A_SECOND)
        try:
            array = found if isinstance(found, np.ndarray) else np.frombuffer(found, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise self._wrong(f"read({tensor.name!r}) answered {type(found).__name__}, and no bytes") from error
        if isinstance(found, np.ndarray) and not _fits(found, tensor):
            shape = f"{found.dtype} of shape {found.shape}"
            raise self._wrong(f"read({tensor.name!r}) answered {shape}, and {tensor.storage} {tensor.shape} was said")
        if array.nbytes != tensor.size_bytes:
            problem = f"answered {array.nbytes} bytes, and {tensor.storage} {tensor.shape} has {tensor.size_bytes}"
            raise self._wrong(f"read({tensor.name!r}) {problem}")
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def _tensor(self, name: Any, said: Any) -> TensorFacts:
        try:
            dtype, shape = said
            storage, sizes = SAFETENSORS_TYPES.get(dtype), tuple(shape)
        except (TypeError, ValueError) as error:
            raise self._wrong(f"tensors answered {said!r} for {name!r}, and no dtype and shape") from error
        if storage is None or not isinstance(name, str):
            known = ", ".join(SAFETENSORS_TYPES)
            raise self._wrong(f"tensors answered dtype {dtype!r} for {name!r}", f"known ones: {known}")
        if len(sizes) > MAX_DIMENSIONS or not all(is_size(each) for each in sizes):
            raise self._wrong(f"tensors answered the impossible shape {sizes} for {name!r}")
        return TensorFacts(
            name=name,
            stored_name=name,
            shape=sizes,
            storage=storage,
            file="",
            offset_bytes=0,
            size_bytes=stored_bytes(storage, sizes),
        )

    def _run(self, call: Callable[[], T], more_s: float = 0.0) -> T:
        try:
            with self._lock:
                return self._calls.run(f"{FIELD}: {self._path}", call, more_s)
        except (TookTooLongError, StoppedError) as error:
            raise CheckpointError("the checkpoint", str(error)) from error
        except Exception as error:  # code of the operator's, which may raise anything
            raise self._wrong(f"raised {type(error).__name__}: {error}") from error

    def _wrong(self, problem: str, hint: str | None = None) -> CheckpointError:
        return CheckpointError("the checkpoint", f"{FIELD}: {self._path} {problem}", hint)


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
                self._kept[name] = self._loader.read(self._tensors[name])
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


def read_custom(root: Path, choice: LoaderChoice) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Returns the tensors that a loader has, and what stands for their headers. Raises PluginError or
    CheckpointError."""
    tensors = CustomLoader(root, choice).tensors()
    digest = sha256_json([[each.name, each.storage, list(each.shape)] for each in tensors])
    return tensors, [f"custom {choice.path} {digest}".encode()]


def _fits(array: np.ndarray[Any, Any], tensor: TensorFacts) -> bool:
    wanted = np.dtype(NUMPY_TYPES[tensor.storage])
    is_type = array.dtype.itemsize == wanted.itemsize if tensor.storage in _BITS else array.dtype == wanted
    return bool(is_type and array.shape == tensor.shape)
