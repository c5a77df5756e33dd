"""The table of rotary angles."""

import numpy as np

from appliance.layers.rope import LinearScaling, RopeSpec
from appliance.loading.rope import rope_table


def test_cosines_then_sines_times_the_attention_factor() -> None:
    table = rope_table(RopeSpec(4, 16.0, attention_factor=1.5), 6)
    assert (table.out_features, table.in_features) == (6, 4)
    angles = np.arange(6)[:, None] * np.asarray([1.0, 0.25])
    expected = 1.5 * np.concatenate((np.cos(angles), np.sin(angles)), axis=1)
    np.testing.assert_allclose(table.data, expected, atol=1e-6)


def test_angles_are_rounded_as_f32_products_far_out() -> None:
    """At position 100,000 an f32 product is off by thousandths of a radian; models were trained with that."""
    frequency = float(np.float32(0.9))
    table = rope_table(RopeSpec(2, 10_000.0, LinearScaling(1 / frequency)), 100_001)
    angle = np.float32(100_000) * np.float32(frequency)
    np.testing.assert_allclose(table.data[-1], [np.cos(np.float64(angle)), np.sin(np.float64(angle))], atol=1e-6)
