"""Draws by Triton's kernels, and the memory that they pass on."""

import numpy as np
import torch

from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.triton.sampling import SamplerWorkspace, sample
from appliance.kernels.sampling import SamplingBatch
from appliance.program.device_memory import DRAW_CHUNKS


class DrawMemory:
    """The memory for at most so many rows."""

    def __init__(self, max_rows: int, device: Device, chunks: int = DRAW_CHUNKS) -> None:
        """chunks: programs of a row."""
        self._device = device
        self._most = SamplerWorkspace.allocate(max_rows, device.name, chunks)

    @property
    def size_bytes(self) -> int:
        most = self._most
        parts = (most.top, most.counts, most.masses, most.keys, most.rest, most.limits, most.sums)
        return sum(part.nbytes for part in parts)

    def draw(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        """Returns int32 [R] from logits f32 [R, V] after masks, biases and penalties."""
        drawn = batch.temperature > 0
        with np.errstate(divide="ignore"):  # no min_p is the logarithm of zero
            least = np.log(batch.min_p)
        top_k, top_p = np.where(drawn, batch.top_k, 0), np.where(drawn, batch.top_p, np.float32(1))
        columns = (batch.temperature, top_k.astype(np.int32), top_p, least.astype(np.float32))
        numbers = (batch.seed.view(np.int64), batch.position.view(np.int64))
        out = torch.empty(batch.num_rows, dtype=torch.int32, device=self._device.name)
        by_count, by_mass = bool((~drawn | (top_k > 0)).any()), bool((top_p < 1).any())
        temperature, top_ks, top_ps, min_logs = (self._device.put(column) for column in columns)
        seeds, positions = (self._device.put(column) for column in numbers)
        given = (temperature, top_ks, top_ps, min_logs, seeds, positions)
        sample(logits, *given, out, self._of(batch.num_rows), by_count, by_mass)
        return out

    def _of(self, rows: int) -> SamplerWorkspace:
        """Returns the memory's part for exactly so many rows."""
        most = self._most

        def doubled(part: torch.Tensor) -> torch.Tensor:
            """Returns the part of an array [2, R, ...], whose halves follow each other."""
            shape = (2, rows, *part.shape[2:])
            return part.flatten()[: 2 * rows * part[0, 0].numel()].view(shape)

        return SamplerWorkspace(
            most.top[:rows], doubled(most.counts), doubled(most.masses), doubled(most.keys), doubled(most.rest),
            most.limits[:rows], most.sums[:rows],
        )  # fmt: skip
