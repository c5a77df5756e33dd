"""A loader of the operator's own (`loading.load_format: custom`): what it says of its tensors, without NumPy."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from appliance.base.bounded import BoundedCalls, StoppedError, TookTooLongError
from appliance.base.hashing import sha256_json
from appliance.base.plugin_types import WeightLoader
from appliance.base.plugins import PluginError, load_plugin
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.loader_choice import LoaderChoice
from appliance.checkpoint.safetensors import MAX_DIMENSIONS, is_size
from appliance.checkpoint.storage import SAFETENSORS_TYPES, stored_bytes

FIELD: Final = "loading.loader_cls"
TIMEOUT_S: Final = 60.0
_BYTES_A_SECOND: Final = 10_000_000  # fewer than any store gives; large tensors get as much more time

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
            raise self.wrong(f"tensors answered {type(said).__name__}, and no mapping")
        return tuple(self._tensor(name, said[name]) for name in sorted(said, key=str))

    def read(self, tensor: TensorFacts) -> Any:
        """Returns what the loader has for a tensor, unchecked. Raises CheckpointError."""
        return self._run(partial(self._own.read, tensor.name), tensor.size_bytes / _BYTES_A_SECOND)

    def _tensor(self, name: Any, said: Any) -> TensorFacts:
        try:
            dtype, shape = said
            storage, sizes = SAFETENSORS_TYPES.get(dtype), tuple(shape)
        except (TypeError, ValueError) as error:
            raise self.wrong(f"tensors answered {said!r} for {name!r}, and no dtype and shape") from error
        if storage is None or not isinstance(name, str):
            known = ", ".join(SAFETENSORS_TYPES)
            raise self.wrong(f"tensors answered dtype {dtype!r} for {name!r}", f"known ones: {known}")
        if len(sizes) > MAX_DIMENSIONS or not all(is_size(each) for each in sizes):
            raise self.wrong(f"tensors answered the impossible shape {sizes} for {name!r}")
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
            raise self.wrong(f"raised {type(error).__name__}: {error}") from error

    def wrong(self, problem: str, hint: str | None = None) -> CheckpointError:
        """Returns the error for something that the loader said."""
        return CheckpointError("the checkpoint", f"{FIELD}: {self._path} {problem}", hint)


def read_custom(root: Path, choice: LoaderChoice) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Returns the tensors that a loader has, and what stands for their headers. Raises PluginError or
    CheckpointError."""
    tensors = CustomLoader(root, choice).tensors()
    digest = sha256_json([[each.name, each.storage, list(each.shape)] for each in tensors])
    return tensors, [f"custom {choice.path} {digest}".encode()]
