"""What a device is asked for before anything is allocated on it."""

from collections.abc import Callable

import pytest
import torch

from appliance.kernels.errors import BindError
from appliance.kernels.gpu.device import Device

GPU, GIB = Device(torch.device("cuda:0")), 1 << 30


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[float]]:
    """A card of 80 GiB, 30 of them free; the shares that a process may take."""
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    return lambda: shares


def test_a_card_that_others_use_is_refused_before_weights_are_read(card: Callable[[], list[float]]) -> None:
    message = "cuda:0 has 30.0 GiB free of 80.0 GiB, and the plan takes 72.0 GiB: other processes use the card"
    with pytest.raises(BindError, match=message):
        GPU.claim(72 * GIB)
    assert card() == []


def test_a_process_keeps_to_its_share(card: Callable[[], list[float]]) -> None:
    GPU.claim(20 * GIB)
    assert card() == [0.25]
    Device(torch.device("cpu")).claim(1 << 60)  # nobody asks about the host's memory here
    assert card() == [0.25]
