"""The way of weights to a device is a ring of host memory, from which the device copies by itself.

While the device copies one piece, the host fills the next: a checkpoint's mapped file is read once, and into memory
that needs no further copy in the driver. On torch's CPU device a copy is a copy.
"""

import numpy as np
import torch

from appliance.kernels.gpu.device import Device
from appliance.program.device_memory import RING_PIECE_BYTES, RING_PIECES


class WeightStream:
    """A ring of pieces, which is allocated with the first weight and goes with the stream."""

    def __init__(self, device: Device, piece_bytes: int = RING_PIECE_BYTES) -> None:
        self._device, self._piece_bytes, self._at = device, piece_bytes, 0
        self._pieces: list[torch.Tensor] = []
        self._copied = [device.event() for _ in range(RING_PIECES)] if device.is_gpu else []

    def put(self, array: np.ndarray) -> torch.Tensor:
        """Returns a copy of an array on the device, which is complete for all work that is given to it later."""
        if not self._device.is_gpu:
            return self._device.put(array)
        own = np.ascontiguousarray(array)
        kind = torch.from_numpy(np.empty(0, own.dtype)).dtype
        target = torch.empty(own.shape, dtype=kind, device=self._device.name)
        self._copy(own.reshape(-1).view(np.uint8), target.view(-1).view(torch.uint8))
        return target

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Does the same with a tensor of the host."""
        return self.put(tensor.contiguous().view(-1).view(torch.uint8).numpy()).view(tensor.dtype).view(tensor.shape)

    def _copy(self, source: np.ndarray, target: torch.Tensor) -> None:
        for start in range(0, len(source), self._piece_bytes):
            part = source[start : start + self._piece_bytes]
            piece = self._next()
            piece[: len(part)].numpy()[:] = part
            target[start : start + len(part)].copy_(piece[: len(part)], non_blocking=True)
            self._copied[self._at].record()

    def _next(self) -> torch.Tensor:
        """Returns the next piece, once what was in it has left."""
        if len(self._pieces) < RING_PIECES:
            self._at = len(self._pieces)
            self._pieces.append(self._device.staging(self._piece_bytes))
        else:
            self._at = (self._at + 1) % RING_PIECES
            self._copied[self._at].wait()
        return self._pieces[self._at]
