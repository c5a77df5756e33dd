"""What a device is asked for before anything is allocated on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from appliance.kernels.errors import BindError
from appliance.kernels.gpu.device import Device, on_device
from appliance.kernels.gpu.kernel_set import GpuExecutable

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


def test_work_is_done_where_its_device_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of Triton run on the current GPU, and streams and events are of it, whichever tensors they get."""
    inside: list[str] = []

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        inside.append(str(device))
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)

    class Worker:
        _device = Device(torch.device("cuda:1"))

        @on_device
        def where(self) -> list[str]:
            return list(inside)

    assert Worker().where() == ["cuda:1"]
    assert inside == []


@pytest.mark.parametrize("name", ["_launch", "begin_sampling", "capture_next", "wake_weights"])
def test_an_executable_enters_its_device(name: str) -> None:
    class EnteredError(Exception):
        pass

    class Other:
        def current(self) -> None:
            raise EnteredError

    executable = object.__new__(GpuExecutable)
    executable._device = Other()  # type: ignore[assignment]  # whatever is entered first
    with pytest.raises(EnteredError):
        getattr(executable, name)(*([None] * (name != "capture_next") + [None] * (name == "begin_sampling")))
