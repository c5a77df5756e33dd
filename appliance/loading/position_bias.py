"""Makes the biases of attention scores from those that a checkpoint has for buckets of distances."""

import math

import numpy as np
import numpy.typing as npt

from appliance.kernels.layout import CanonicalWeight
from appliance.layers.spec import PositionBias
from appliance.loading.formats.dense import dense_weight


def bias_table(spec: PositionBias, buckets: npt.NDArray[np.float32], max_model_len: int) -> CanonicalWeight:
    """Returns f32 [H, 2 * max_model_len - 1]: at d + max_model_len - 1 the bias of a key d places after the query.

    buckets: f32 [num_buckets, H].
    """
    distances = np.arange(1 - max_model_len, max_model_len)
    return dense_weight(np.ascontiguousarray(buckets[_buckets_of(spec, distances)].T), "f32")


def _buckets_of(spec: PositionBias, ahead: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the bucket of each distance (Raffel et al. 2020): half of them for keys behind the query, half for those
    after it. Of each half the first ones are for one distance alone, the others grow up to max_distance."""
    half = spec.num_buckets // 2
    exact = half // 2
    far = np.abs(ahead)
    steps = np.log(np.maximum(far, 1) / exact) / math.log(spec.max_distance / exact) * (half - exact)
    wide = np.minimum(exact + steps.astype(np.int64), half - 1)
    return np.where(far < exact, far, wide) + np.where(ahead > 0, half, 0)
