"""Draws by Triton's kernels, and the memory that they pass on."""

import numpy as np
import torch

from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.draws import DrawKind
from appliance.kernels.gpu.triton.argmax import argmax
from appliance.kernels.gpu.triton.sampling import SamplerWorkspace, sample
from appliance.kernels.sampling import SamplingBatch
from appliance.program.device_memory import DRAW_CHUNKS, DRAW_COLUMN_BYTES


class DrawMemory:
    """The memory for at most so many rows."""

    def __init__(self, max_rows: int, device: Device, chunks: int = DRAW_CHUNKS) -> None:
        """chunks: programs of a row."""
        self._device = device
        self._most = SamplerWorkspace.allocate(max_rows, device.name, chunks)
        self._staging = device.staging(DRAW_COLUMN_BYTES * max_rows)
        self._columns = device.zeros(DRAW_COLUMN_BYTES * max_rows, dtype=torch.uint8)
        self._copied = device.event()

    @property
    def size_bytes(self) -> int:
        most = self._most
        parts = (most.top, most.counts, most.masses, most.keys, most.rest, most.limits, most.sums, self._columns)
        return sum(part.nbytes for part in parts)

    def load(self, batch: SamplingBatch) -> DrawKind:
        drawn = batch.temperature > 0
        with np.errstate(divide="ignore"):  # no min_p is the logarithm of zero
            least = np.log(batch.min_p)
        top_k, top_p = np.where(drawn, batch.top_k, 0), np.where(drawn, batch.top_p, np.float32(1))
        self._copied.wait()  # the host's memory is free again only then
        values: tuple[np.ndarray, ...] = (batch.seed, batch.position, batch.temperature, top_k, top_p, least)
        for column, numbers in zip(self._views(self._staging, batch.num_rows), values, strict=True):
            column.numpy()[:] = numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers
        self._columns.copy_(self._staging, non_blocking=True)
        self._copied.record()
        by_count, by_mass = bool((~drawn | (top_k > 0)).any()), bool((top_p < 1).any())
        return DrawKind(batch.num_rows, by_count, by_mass, is_greedy=not drawn.any())

    def run(self, logits: torch.Tensor, kind: DrawKind, out: torch.Tensor) -> None:
        if kind.is_greedy:
            largest, index = self._most.top[: kind.num_rows], self._most.counts.flatten()
            argmax(logits, out, largest, index, largest.shape[1])
            return
        seeds, positions, temperatures, top_ks, top_ps, least = self._views(self._columns, kind.num_rows)
        numbers = (temperatures, top_ks, top_ps, least, seeds, positions)
        sample(logits, *numbers, out, self._of(kind.num_rows), kind.by_count, kind.by_mass)

    def draw(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        out = torch.empty(batch.num_rows, dtype=torch.int32, device=self._device.name)
        self.run(logits, self.load(batch), out)
        return out

    def _views(self, memory: torch.Tensor, rows: int) -> list[torch.Tensor]:
        """Returns the columns of the first rows: seeds and positions int64, temperatures f32, top_k int32, top_p and
        the logarithms of min_p f32. They lie at the same places for any number of rows."""
        most = len(memory) // DRAW_COLUMN_BYTES
        wide = memory[: 16 * most].view(torch.int64).view(2, most)
        narrow = memory[16 * most :].view(torch.float32).view(4, most)
        temperatures, top_ks, top_ps, least = narrow
        columns = (*wide, temperatures, top_ks.view(torch.int32), top_ps, least)
        return [column[:rows] for column in columns]

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
