"""How a plan reads weights, and keeps them between starts."""

from typing import Literal

import msgspec


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """So many threads read tensors past the page cache, and keep so many bytes of them at most."""

    num_threads: int
    memory_bytes: int


class LoadingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How packed weights are kept between starts."""

    keep_packed: bool = False
    packed_dir: str | None = None  # None: in the cache folder of the user
    packed_max_bytes: int = 0
    packed_access: Literal["map", "copy"] = "map"
    stream: StreamPlan | None = None  # None: files are mapped
    max_loading_ranks: int | None = None  # at once; None: all
    checkpoint_sha256: str | None = None  # checked before planning; None: the files' sizes and times stand for them
