"""New weights for a running model, from a checkpoint or from arrays: see docs/guides/weights.md."""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from appliance.checkpoint.named_tensor import NamedTensor
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.offline.errors import InvalidRequestError, NotHereError
from appliance.offline.session import Session

Tensors = Mapping[str, Any] | Iterable[tuple[str, Any]]
_DTYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


async def update_weights(session: Session, update: WeightUpdate) -> WeightStats:
    """Raises NotHereError for tensors where there are several replicas, RequestFailedError with why the old weights
    stay. Returns what the first engine has."""
    if session.plan.parallel.replicas > 1 and update.path is None:
        raise NotHereError("several replicas take weights of a checkpoint, not tensors")
    return next(iter((await session.engines.client.replace_weights(update)).values()))


def weight_update(
    path: str | Path | None, tensors: Tensors | None, *, sha256: str | None, abort: bool, flush_cache: bool
) -> WeightUpdate:
    """Returns what the engine is asked for. Raises InvalidRequestError unless one of path and tensors is given, and for
    no tensors, or one that is none of float32, float16 or bfloat16."""
    if (path is None) == (tensors is None):
        raise InvalidRequestError("new weights are of a checkpoint or tensors: give one of path and tensors")
    if tensors is None:
        source = str(Path(str(path)).expanduser().resolve())
        return WeightUpdate(path=source, sha256=sha256, abort=abort, flush_cache=flush_cache)
    if sha256 is not None:
        raise InvalidRequestError("sha256 is the digest of a checkpoint, and tensors were given", param="sha256")
    items = tensors.items() if isinstance(tensors, Mapping) else tensors
    named = tuple(_named(name, tensor) for name, tensor in items)
    if not named:
        raise InvalidRequestError("no tensors were given, and no path", param="tensors")
    return WeightUpdate(tensors=named, abort=abort, flush_cache=flush_cache)


def _named(name: str, tensor: Any) -> NamedTensor:
    """Takes arrays of NumPy and tensors of torch, on whatever device; torch itself is not imported."""
    if not hasattr(tensor, "dtype"):
        kinds = "an array of NumPy or a tensor of torch"
        raise InvalidRequestError(f"{name} is of {type(tensor).__name__}, and not {kinds}", param="tensors")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        allowed = ", ".join(_DTYPES)
        raise InvalidRequestError(f"{name} is of {dtype}; new weights are of {allowed}", param="tensors")
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().contiguous()
        if dtype == "bfloat16":  # NumPy has no such type; its bits are those of an integer
            tensor = tensor.view(importlib.import_module("torch").int16)
        tensor = tensor.numpy()
    array = np.ascontiguousarray(tensor)
    return NamedTensor(name, _DTYPES[dtype], tuple(array.shape), array.tobytes())
