"""What a program keeps between steps, by the order in which its blocks declare it."""

import msgspec


class KvShape(msgspec.Struct, frozen=True):
    """Keys and values of one attention block: `num_kv_heads` vectors of `head_dim` of each for every cached token.

    window: how many of the latest tokens are ever read; None for all.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None
