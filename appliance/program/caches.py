"""The caches that a program keeps between steps, in the order in which its blocks declare them."""

import msgspec


class KvShape(msgspec.Struct, frozen=True):
    """The shape of one attention block's cache: per cached token, num_kv_heads keys and as many values of head_dim.

    window: only this many of the latest tokens are read; None for all.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None
