"""Layers whose matrices stay in host memory, and are copied to the device in each step beside its work.

The device has two buffers, each as large as the largest of these layers. While one layer is computed from its buffer,
the next one is copied into the other; as soon as a layer has been computed, the copy of the one after next begins.
Behind the last layer come the first ones again, for the next step. So between steps both buffers hold, or will, the
first two layers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from appliance.kernels.errors import BindError
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.kernels.gpu.segments import Call
from appliance.kernels.gpu.sleeping import tensors_of
from appliance.kernels.gpu.step import DeviceStep
from appliance.program.operators import Operator, StepProgram
from appliance.program.streamed_layers import NUM_BUFFERS, streamable_matrices

_ALIGNMENT = 256  # of a tensor in a buffer, for kernels that read wide
Run = Callable[[Any, DeviceStep], None]


class HostLayers:
    """The streamed layers of one model. All methods are called by the thread that gives steps to the device."""

    def __init__(self, program: StepProgram, layers: Sequence[int], device: Device) -> None:
        """layers: in rising order; none: nothing is streamed."""
        self._num_layers = len(layers)
        order = {layer: place for place, layer in enumerate(layers)}
        found = streamable_matrices(program).items() if layers else ()
        self._places = {name: order[layer] for name, layer in found if layer in order}  # of a weight's layer among them
        self._device = device
        self._host: dict[str, DeviceMatrix] = {}  # matrices in memory of the host from which the device copies
        self._buffers: list[torch.Tensor] = []
        self._copies: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in layers]  # (of the device, the host)
        self._stream = device.copies() if layers else None

    def taken(self, name: str, matrix: DeviceMatrix) -> DeviceMatrix:
        """Returns the matrix of a weight that was loaded; of a streamed layer, in memory of the host."""
        if name not in self._places:
            return matrix
        self._host[name] = _with_tensors(matrix, self._to_host)
        return self._host[name]

    def place(self, matrices: dict[str, DeviceMatrix]) -> None:
        """Puts matrices in the buffers in place of those that `taken` left on the host. Raises BindError if a layer has
        none."""
        if not self._num_layers:
            return
        sizes = [0] * self._num_layers
        offsets: dict[str, list[int]] = {}
        for name, matrix in self._host.items():
            place = self._places[name]
            for tensor in tensors_of(matrix):
                offsets.setdefault(name, []).append(sizes[place])
                sizes[place] += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if len(sizes) <= NUM_BUFFERS or not all(sizes):
            raise BindError(f"{len(sizes)} layers cannot be streamed through {NUM_BUFFERS} buffers")
        self._buffers = [self._device.zeros(max(sizes), dtype=torch.uint8) for _ in range(NUM_BUFFERS)]
        for name, matrix in self._host.items():
            matrices[name] = self._in_buffer(name, matrix, iter(offsets[name]).__next__)
        self.begin()

    def begin(self) -> None:
        """Fills the buffers with the first layers, between steps."""
        for place in range(min(NUM_BUFFERS, self._num_layers)):
            self._load(place)

    def refill(self, name: str, matrix: DeviceMatrix) -> bool:
        """Copies the numbers of another matrix to the host's; then call `begin`. Returns False for a matrix that is not
        streamed."""
        host = self._host.get(name)
        if host is None:
            return False
        for target, source in zip(tensors_of(host), tensors_of(matrix), strict=True):
            target.copy_(source)
        return True

    def resident_bytes(self, matrices: Mapping[str, DeviceMatrix]) -> int:
        """Returns what the matrices take of the device, with the buffers."""
        own = sum(matrix.nbytes for name, matrix in matrices.items() if name not in self._host)
        return own + sum(buffer.nbytes for buffer in self._buffers)

    def streamed(self, calls: list[Call]) -> list[Call]:
        """Returns the calls of a program, of which the first of each streamed layer waits for its copy and the last has
        the next copy begin."""
        uses: dict[int, list[int]] = {}
        for at, (_, op) in enumerate(calls):
            for place in {self._places[name] for name in op.named(op.matrices) if name in self._places}:
                uses.setdefault(place, []).append(at)
        changed = list(calls)
        for place, ats in uses.items():
            later = uses.get(place + NUM_BUFFERS)
            assert later is None or ats[-1] < later[0], "layers run one after the other"
            changed[ats[0]] = functools.partial(self._run_first, place, changed[ats[0]][0]), changed[ats[0]][1]
            changed[ats[-1]] = functools.partial(self._run_last, place, changed[ats[-1]][0]), changed[ats[-1]][1]
        return changed

    def _run_first(self, place: int, run: Run, op: Operator, step: DeviceStep) -> None:
        if self._stream is not None:
            self._stream.wait(place % NUM_BUFFERS)
        run(op, step)

    def _run_last(self, place: int, run: Run, op: Operator, step: DeviceStep) -> None:
        run(op, step)
        following = place + NUM_BUFFERS
        self._load(following if following < self._num_layers else place % NUM_BUFFERS)

    def _load(self, place: int) -> None:
        """Has a layer copied to its buffer, behind all work that was given to the device until now."""
        if self._stream is not None:
            self._stream.copy(place % NUM_BUFFERS, self._copies[place])

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._device.is_gpu)
        return host.copy_(tensor)

    def _in_buffer(self, name: str, matrix: DeviceMatrix, offset: Callable[[], int]) -> DeviceMatrix:
        place = self._places[name]

        def view(host: torch.Tensor) -> torch.Tensor:
            start = offset()
            memory = self._buffers[place % NUM_BUFFERS][start : start + host.nbytes]
            own = memory.view(host.dtype).view(host.shape)
            self._copies[place].append((own, host))
            return own

        return _with_tensors(matrix, view)


def _with_tensors(matrix: DeviceMatrix, change: Callable[[torch.Tensor], torch.Tensor]) -> DeviceMatrix:
    """Returns a matrix with other tensors, each changed in the order of `tensors_of`."""
    found: DeviceMatrix = _changed(matrix, change)
    return found


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: _changed(getattr(value, each.name), change) for each in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
