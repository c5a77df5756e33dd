"""A stand-in for a GPU: its memory is the host's, no kernel runs, and what it is asked for is noted.

Noted are copies between host and device, kernels that start, what torch computes, replays of graphs, marks (events),
waits, numbers that the host reads from the device's memory, and memory that is allocated.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from appliance.kernels.gpu import triton_kit
from appliance.kernels.gpu.device import Device, DeviceEvent, GraphMemory
from appliance.kernels.gpu.triton.launch import recorded

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class Log:
    """Notes in their order; without `is_open`, nothing is noted. captured: the notes of each graph."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.captured: list[list[str]] = []
        self.is_open = False
        self.host: set[int] = set()  # storages of the host's memory

    def note(self, what: str) -> None:
        if self.is_open:
            self.notes.append(what)

    def take(self) -> list[str]:
        """Returns the notes so far, and forgets them."""
        notes, self.notes = self.notes, []
        return notes

    def is_host(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.host


class RecordingDevice(Device):
    """A GPU for all that asks whether it is one."""

    log: Log

    @classmethod
    def noting(cls, log: Log) -> "RecordingDevice":
        device = cls(torch.device("cpu"))
        object.__setattr__(device, "log", log)
        return device

    @property
    def is_gpu(self) -> bool:
        return True

    def current(self) -> AbstractContextManager[None]:
        """There is no other device."""
        return nullcontext()

    def claim(self, wanted: int) -> None:
        """There is no other process."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        memory = torch.zeros(size_bytes, dtype=torch.uint8)
        self.log.host.add(memory.untyped_storage().data_ptr())
        return memory

    def upload(self, array: np.ndarray) -> torch.Tensor:
        self.log.note("upload")
        return self.put(array)

    def download(self, values: torch.Tensor) -> torch.Tensor:
        self.log.note("download")
        found = values.clone()
        self.log.host.add(found.untyped_storage().data_ptr())
        return found

    def event(self) -> DeviceEvent:
        return _Event(self.log)

    def wait(self) -> None:
        self.log.note("synchronize")

    def graphs(self) -> GraphMemory:
        return _Graphs(self.log)


class _Event(DeviceEvent):
    def __init__(self, log: Log) -> None:
        super().__init__(None)
        self._log = log

    def record(self) -> None:
        self._log.note("mark")

    def wait(self) -> None:
        self._log.note("wait for a mark")


class _Graphs:
    def __init__(self, log: Log) -> None:
        self._log = log

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        outer, self._log.notes = self._log.notes, []
        work()
        self._log.captured.append(self._log.notes)
        self._log.notes = outer
        self._log.note("capture")
        return lambda: self._log.note("replay")


class _Operators(TorchDispatchMode):
    """Notes what torch computes: copies between host and device by their direction, allocations by their operator."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.Tensor)]
        known = {each.untyped_storage().data_ptr() for each in given}
        made = result.untyped_storage().data_ptr() if isinstance(result, torch.Tensor) else None
        if name == "_local_scalar_dense":
            self._log.note("host read")
        elif name == "copy_":
            into, source = given[0], given[1]
            places = ["host" if self._log.is_host(each) else "device" for each in (source, into)]
            self._log.note(" to ".join(places))
        elif made is not None and made not in known:
            self._log.note(f"allocation by {name}")
        elif not func._schema.is_mutable:
            return result  # a view
        else:
            self._log.note(name)
        return result


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RecordingDevice, Log]]:
    """Gives a stand-in whose log is open from the first `log.is_open = True` on."""
    log = Log()
    monkeypatch.setattr(triton_kit, "generation_of", lambda device: ("sm90", 132))
    for name in READS:
        _watch(name, log, monkeypatch)

    def launched(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        log.note(f"kernel {kernel.fn.__name__ if hasattr(kernel, 'fn') else kernel}")

    with recorded(launched), _Operators(log):
        yield RecordingDevice.noting(log), log


def _watch(name: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(torch.Tensor, name)

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not log.is_host(self):
            log.note(f"host read by {name}")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, name, watched)
