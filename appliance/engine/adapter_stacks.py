"""Stacks: several adapters of one request, which together have a slot like one.

The digest of a stack names its parts and their scales, so a list of stacks is not needed anywhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from appliance.kernels.interface import WeightChange
from appliance.loading.formats.dense import narrow, widen

_JOIN, _TIMES = "+", "*"


class StackPart(NamedTuple):
    """An adapter of a stack, by its digest, and the factor of all that it adds."""

    sha256: str
    scale: float


def stack_digest(parts: Iterable[StackPart]) -> str:
    return _JOIN.join(f"{part.sha256}{_TIMES}{part.scale!r}" for part in parts)


def is_stack(digest: str) -> bool:
    return _TIMES in digest


def parts_of(digest: str) -> tuple[StackPart, ...]:
    """Returns the parts that the digest of a stack names."""
    pairs = (part.split(_TIMES) for part in digest.split(_JOIN))
    return tuple(StackPart(sha256, float(scale)) for sha256, scale in pairs)


def digests_of(digest: str) -> set[str]:
    """Returns the digests of the adapters that are needed for an adapter or a stack."""
    return {part.sha256 for part in parts_of(digest)} if is_stack(digest) else {digest}


def stacked(
    parts: Sequence[StackPart], maps_of: Callable[[str], Mapping[str, WeightChange]], dtype: str
) -> dict[str, WeightChange]:
    """Returns what adapters add together, by logical weight: matrices of low rank side by side, whole ones as a sum.

    dtype: of their numbers, "f32" or "bf16"; what a scale changes is rounded to it.
    """
    changes = [(part.scale, maps_of(part.sha256)) for part in parts]
    names = dict.fromkeys(name for _, maps in changes for name in maps)
    return {name: _together([(scale, maps[name]) for scale, maps in changes if name in maps], dtype) for name in names}


def _together(changes: Sequence[tuple[float, WeightChange]], dtype: str) -> WeightChange:
    vectors = {
        field: _sum([(scale, getattr(each, field)) for scale, each in changes], dtype) for field in ("stretch", "shift")
    }
    products = [(scale, each) for scale, each in changes if each.up is not None]
    if not products:
        return WeightChange(**vectors)
    if any(each.down is None for _, each in products):
        return WeightChange(up=_sum([(scale, _whole(each, dtype)) for scale, each in products], dtype), **vectors)
    down = np.concatenate([each.down for _, each in products if each.down is not None])
    up = np.concatenate([_scaled(scale, each.up, dtype) for scale, each in products if each.up is not None], axis=1)
    return WeightChange(down, np.asfortranarray(up), **vectors)


def _whole(change: WeightChange, dtype: str) -> np.ndarray | None:
    """Returns the matrix of a weight's own shape that an adapter adds."""
    if change.down is None or change.up is None:
        return change.up
    return narrow(widen(change.up, dtype) @ widen(change.down, dtype), dtype)


def _scaled(scale: float, values: np.ndarray, dtype: str) -> np.ndarray:
    return values if scale == 1.0 else narrow(widen(values, dtype) * np.float32(scale), dtype)


def _sum(terms: Sequence[tuple[float, np.ndarray | None]], dtype: str) -> np.ndarray | None:
    present = [np.float32(scale) * widen(values, dtype) for scale, values in terms if values is not None]
    return narrow(sum(present[1:], start=present[0]), dtype) if present else None
