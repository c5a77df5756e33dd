"""The form of one model type's differences from the usual config."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

Json = Mapping[str, Any]
MAX_COUNT: Final = 1 << 31
MAX_LAYERS: Final = 4096


def _nothing(_: Json) -> Json:
    return {}


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One model type's way to write a config.

    names: its own names of values, by ours. defaults: of values that are left out. derived: values that follow from
    the others; what was stated wins. window_every: each n-th layer, counted from 1, is full, and the others
    have a window. window_switch: layers have windows only with `use_sliding_window`, from `max_window_layers` on.
    rotates: which layers have rotary positions; none where positions are learned. has_chunks: layers with rotary
    positions see only their own chunk. kinds: the layer types that it may have; where no types are stated and the first
    is no attention, it is that of every layer. first_position: rows of the position table before that of the first
    token, which counts them among its max_position_embeddings.
    """

    names: Mapping[str, str] = {}
    defaults: Json = {}
    derived: Callable[[Json], Json] = _nothing
    window_every: int = 0
    window_switch: bool = False
    rotates: Literal["all", "none", "windows"] = "all"
    has_chunks: bool = False
    first_position: int = 0
    kinds: tuple[str, ...] = ("full_attention", "sliding_attention", "chunked_attention")


def size_of(value: Any) -> int:
    """Returns a size as it was stated; zero for what is none, which is refused where it is read."""
    return value if type(value) is int and 0 < value < MAX_COUNT else 0


OTHER: Final = Dialect()
