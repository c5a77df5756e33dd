"""The device on which a GPU set runs: a GPU, or torch's CPU device, which runs the same code in tests."""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch

from appliance.base.units import format_size
from appliance.kernels.errors import BindError

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "int32": torch.int32}


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `name` is torch's for it; ROCm's devices are called cuda there too."""

    name: torch.device

    @classmethod
    def named(cls, kind: str) -> "Device":
        """Returns the device of a plan: "cpu", "cuda" or "rocm", with ":1" for the second. Raises BindError if torch
        has none."""
        name = kind.replace("rocm", "cuda")
        if name.startswith("cuda") and not torch.cuda.is_available():
            built = torch.version.hip if kind.startswith("rocm") else torch.version.cuda
            reason = "finds no driver or no device" if built else f"was built without {kind.partition(':')[0]}"
            raise BindError(f"there is no {kind} device: torch {torch.__version__} {reason}")
        return cls(torch.device(name))

    @property
    def is_gpu(self) -> bool:
        return self.name.type == "cuda"

    def current(self) -> AbstractContextManager[None]:
        """Returns the context in which what names no device is this one's: kernels, streams and events. Of each thread
        that is another GPU at first, where there are several."""
        return torch.cuda.device(self.name) if self.is_gpu else nullcontext()

    def claim(self, wanted: int) -> None:
        """Has this process take no more than so many bytes of a GPU. Raises BindError if they are not free: other
        processes use it."""
        if not self.is_gpu:
            return
        free, total = torch.cuda.mem_get_info(self.name)
        if wanted > free:
            message = f"{self.name} has {format_size(free)} free of {format_size(total)}, and the plan takes"
            hint = "end what else uses the card, or write a smaller hardware.memory.utilization"
            raise BindError(f"{message} {format_size(wanted)}: other processes use the card", hint=hint)
        torch.cuda.set_per_process_memory_fraction(wanted / total, self.name)

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocates zeros. Raises BindError if the device's memory does not suffice."""
        try:
            return torch.zeros(*shape, dtype=dtype, device=self.name)
        except torch.OutOfMemoryError as error:
            size = int(np.prod(shape)) * dtype.itemsize
            raise BindError(f"{self.name} has no room for {size} bytes: {error}") from error

    def staging(self, size_bytes: int) -> torch.Tensor:
        """Returns host memory uint8 [size_bytes] from which the device can copy by itself."""
        return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=self.is_gpu)

    def put(self, array: np.ndarray) -> torch.Tensor:
        """Returns a copy of an array on the device."""
        own = np.ascontiguousarray(array)
        host = torch.from_numpy(own if own.flags.writeable else own.copy())
        return host.to(self.name, copy=True)

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """Returns a copy on the device of an array that a step needs. Nothing waits: the copy is made when the device
        comes to it, from memory of the host that is its own."""
        if not self.is_gpu:
            return self.put(array)
        own = np.ascontiguousarray(array)
        host = torch.from_numpy(own if own.flags.writeable else own.copy())
        return host.pin_memory().to(self.name, non_blocking=True)

    def download(self, values: torch.Tensor) -> torch.Tensor:
        """Returns memory of the host into which the device copies values when it comes to it: an event that is
        recorded now tells when."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self.is_gpu)
        return host.copy_(values, non_blocking=True)

    def event(self) -> "DeviceEvent":
        """Returns a mark in the device's work for which the host can wait."""
        return DeviceEvent(torch.cuda.Event() if self.is_gpu else None)  # type: ignore[no-untyped-call]  # torch leaves its types out

    def copies(self) -> "DeviceCopies":
        """Returns what copies from the host's memory beside the device's work."""
        return DeviceCopies(self)

    def wait(self) -> None:
        """Waits until all work that was given to the device has ended."""
        if self.is_gpu:
            torch.cuda.synchronize(self.name)

    def graphs(self) -> "GraphMemory":
        """Returns the memory of the graphs of one program."""
        return CapturedGraphs(self.name) if self.is_gpu else KeptCalls()


class OnDevice(Protocol):
    """Whatever works on one device."""

    _device: Device


Owner = TypeVar("Owner", bound=OnDevice)
Params = ParamSpec("Params")
Result = TypeVar("Result")


def on_device(
    call: Callable[Concatenate[Owner, Params], Result],
) -> Callable[Concatenate[Owner, Params], Result]:
    """Makes a method run where its owner's device is the current one (Device.current)."""

    @functools.wraps(call)
    def on(owner: Owner, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        with owner._device.current():
            return call(owner, *args, **kwargs)

    return on


Replay = Callable[[], None]


class GraphMemory(Protocol):
    """Captures work of a device, so that it is given to the device again by one call."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Calls `work` once, whose kernels do not run now, and returns what runs them. They always read and write the
        memory that they had when they were captured, so `work` must not ask the device for numbers."""


class KeptCalls:
    """On torch's CPU device a graph is the work itself, called again: the same calls over the same memory."""

    def capture(self, work: Callable[[], None]) -> Replay:
        return work


class CapturedGraphs:
    """Graphs of a GPU, all in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its types out
        self._pool = torch.cuda.graph_pool_handle()
        # A pool is freed with its last graph, so one graph that is never replayed keeps it.
        self._first = self._captured(lambda: torch.zeros(1, device=device))

    def capture(self, work: Callable[[], None]) -> Replay:
        return self._captured(work).replay

    def _captured(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """The stream of the steps goes on meanwhile: work that is running is not waited for."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph


class DeviceEvent:
    """A mark in the work of a device; of torch's CPU device, whose work has always ended, nothing."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def record(self) -> None:
        """Sets the mark behind all work that was given to the device until now."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Waits until the device has come to the mark; one that was never set is passed."""
        if self._event is not None:
            self._event.synchronize()


class DeviceCopies:
    """Copies from pinned memory of the host, by a stream of their own. On torch's CPU device they are made at once."""

    def __init__(self, device: Device) -> None:
        self._stream = torch.cuda.Stream(device.name) if device.is_gpu else None  # type: ignore[no-untyped-call]  # torch leaves its types out
        self._ended: dict[int, torch.cuda.Event] = {}

    def copy(self, number: int, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copies pairs (target, source) behind all work that was given to the device until now. number: by which the
        work that reads the targets waits."""
        if self._stream is None:
            for target, source in pairs:
                target.copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        self._ended[number] = self._stream.record_event()

    def wait(self, number: int) -> None:
        """Has the work that is given to the device from now on wait for the last copies of this number."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._ended[number])
