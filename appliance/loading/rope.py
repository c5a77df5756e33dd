"""Rotary frequencies, and the table of their angles."""

import math

import numpy as np
import numpy.typing as npt

from appliance.kernels.layout import CanonicalWeight
from appliance.layers.rope import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    ProportionalScaling,
    RopeSpec,
    YarnScaling,
)
from appliance.loading.formats.dense import dense_weight

Vector = npt.NDArray[np.float64]


def inverse_frequencies(spec: RopeSpec) -> npt.NDArray[np.float32]:
    """Returns f32 [rotary_dim / 2]: radians per position, with scaling, after transformers' modeling_rope_utils."""
    base: Vector = spec.theta ** (-np.arange(0, spec.rotary_dim, 2, dtype=np.float64) / spec.rotary_dim)
    return _scaled(base, spec).astype(np.float32)


def rope_table(spec: RopeSpec, num_positions: int) -> CanonicalWeight:
    """Returns f32 [num_positions, rotary_dim]: cosines, then sines, times the attention factor.

    Angles are computed in f32, as in every reference, because models are trained with that rounding.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * inverse_frequencies(spec)[None, :]
    table = np.concatenate((np.cos(angles), np.sin(angles)), axis=1)
    return dense_weight(table * np.float32(spec.attention_factor), "f32")


def _scaled(base: Vector, spec: RopeSpec) -> Vector:
    match spec.scaling:
        case None:
            return base
        case LinearScaling(factor):
            return base / factor
        case Llama3Scaling(factor, low, high, context):
            turns = context * base / (2 * math.pi)  # in the original context
            kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
            return (1 - kept) * base / factor + kept * base
        case YarnScaling(factor, low, high):
            ramp: Vector = np.clip((np.arange(base.size) - low) / (high - low or 0.001), 0.0, 1.0)
            return ramp * base / factor + (1 - ramp) * base
        case DivisorScaling(divisors):
            return base / np.asarray(divisors, np.float64)
        case ProportionalScaling(num_rotated, factor):
            return np.where(np.arange(base.size) < num_rotated, base / factor, 0.0)
