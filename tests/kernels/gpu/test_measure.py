"""Measuring a device, here torch's CPU device in a process of its own."""

import pytest

from appliance.kernels.device_rates import device_rates
from appliance.kernels.errors import KernelSetError


def test_figures_of_a_device() -> None:
    found = device_rates("cpu", mebibytes=1, width=64)
    assert 1e8 < found.copy_bandwidth < 1e13
    assert set(found.peaks) == {"f32", "bf16"}
    assert all(peak > 1e6 for peak in found.peaks.values())


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(KernelSetError, match=r"cuda:0 cannot be measured: .*there is no cuda:0 device"):
        device_rates("cuda:0")
