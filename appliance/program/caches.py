"""What a program keeps between steps, by the order in which its blocks declare it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values of one attention block: `num_kv_heads` vectors of `head_dim` of each for every cached token."""

    num_kv_heads: int
    head_dim: int
