"""Rotary positions as data: `loading.rope` makes the frequencies and the tables from them."""

import msgspec


class LinearScaling(msgspec.Struct, frozen=True):
    """Every frequency is divided by `factor`."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True):
    """Frequencies with less than `low_freq_factor` turns in the original context are divided by `factor`; those with
    more than `high_freq_factor` turns stay; between the two the share changes linearly."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: float


class YarnScaling(msgspec.Struct, frozen=True):
    """Frequencies up to index `low` stay, from index `high` on they are divided by `factor`, linearly between."""

    factor: float
    low: float
    high: float


class DivisorScaling(msgspec.Struct, frozen=True):
    """Frequency i is divided by `divisors[i]` (longrope)."""

    divisors: tuple[float, ...]


class ProportionalScaling(msgspec.Struct, frozen=True):
    """Frequencies from index `num_rotated` on are zero, and the others are divided by `factor`."""

    num_rotated: int
    factor: float


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | DivisorScaling | ProportionalScaling


class RopeSpec(msgspec.Struct, frozen=True):
    """Frequencies theta ** (-2 i / rotary_dim) for i in 0 .. rotary_dim / 2 - 1, changed by `scaling`.

    attention_factor multiplies sines and cosines, and so the scores by its square.
    """

    rotary_dim: int
    theta: float
    scaling: RopeScaling | None = None
    interleaved: bool = False
    attention_factor: float = 1.0
