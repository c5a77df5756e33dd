"""The table of rotary angles."""

import numpy as np

from appliance.kernels.layout import CanonicalWeight
from appliance.layers.spec import RopeSpec
from appliance.loading.formats.dense import dense_weight


def rope_table(spec: RopeSpec, num_positions: int) -> CanonicalWeight:
    """f32 [num_positions, rotary_dim]: cosines, then sines, times the attention factor.

    Angles are products in f32, as every reference computes them: models are trained with that rounding.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * np.asarray(spec.inv_freq, np.float32)[None, :]
    table = np.concatenate((np.cos(angles), np.sin(angles)), axis=1)
    return dense_weight(table * np.float32(spec.attention_factor), "f32")
