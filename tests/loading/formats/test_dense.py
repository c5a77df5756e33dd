"""Dense elements against torch's own conversions."""

import numpy as np
import pytest
import torch

from appliance.loading.formats.dense import narrow, round_to_bf16, widen
from appliance.loading.formats.groups import FormatError


def hard_values() -> np.ndarray:
    """Ties, subnormals, signed zeros, infinities, and many random bit patterns that are numbers."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    special = np.asarray(
        [0x3F808000, 0x3F818000, 0x3F80FFFF, 0x00000001, 0x80000000, 0x7F800000, 0x7F7FFFFF], np.uint32
    )
    values = np.concatenate((bits, special)).view(np.float32)
    return values[~np.isnan(values)]


def test_bf16_rounds_to_nearest_even() -> None:
    values = hard_values()
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(round_to_bf16(values), expected)


def test_bf16_keeps_nan() -> None:
    back = widen(round_to_bf16(np.asarray([np.nan, -np.nan], np.float32)), "bf16")
    assert np.isnan(back).all()


def test_bf16_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widen(bits, "bf16").view(np.uint32), expected.view(np.uint32))


def test_f16_refuses_what_would_become_infinite() -> None:
    with pytest.raises(FormatError, match="range of f16"):
        narrow(np.asarray([70_000.0], np.float32), "f16")
