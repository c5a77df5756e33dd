"""The logits of a step, which stay on the device."""

from dataclasses import dataclass

import torch

from appliance.kernels.gpu.failures import says_failures
from appliance.kernels.logits import Float32Array


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """values: f32 [R, V] on the device. is_in_place: they lie where those of every step of as many rows lie."""

    values: torch.Tensor
    is_in_place: bool = True

    @property
    def num_rows(self) -> int:
        return len(self.values)

    @says_failures
    def row(self, at: int) -> Float32Array:
        """Copies row `at` to the host, and waits for it."""
        row: Float32Array = self.values[at].cpu().numpy()
        return row

    @says_failures
    def host(self) -> Float32Array:
        """Copies all rows to the host, and waits for them."""
        rows: Float32Array = self.values.cpu().numpy()
        return rows
