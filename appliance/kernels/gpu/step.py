"""What an operator's implementation sees of a step: its slots, weights, caches, states and inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from appliance.kernels.gpu.adapters import DeviceAdapters
from appliance.kernels.gpu.caches import PagedCache
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.inputs import StepArrays
from appliance.kernels.gpu.matrices import DeviceMatrix
from appliance.program.slots import Extent, Slot, Span


@dataclass(frozen=True, slots=True)
class BoundModel:
    """What was bound, the same in all steps.

    buffers: by slot, with rows for the largest step; dtype: that of activations. vectors: f32 [N, K]. states: of each
    state of the program f32 [slots, *shape].
    """

    device: Device
    dtype: torch.dtype
    buffers: Mapping[int, torch.Tensor]
    matrices: Mapping[str, DeviceMatrix]
    vectors: dict[str, torch.Tensor]
    caches: list[PagedCache]
    states: list[torch.Tensor]
    adapters: DeviceAdapters | None
    kit: object  # what the functions of exchanged parts need (parts.Kit)


class DeviceStep:
    """One step: its arrays, and the live rows of every slot."""

    def __init__(self, bound: BoundModel, arrays: StepArrays, num_tokens: int | None = None) -> None:
        """num_tokens: of slots with a row for each token, where that is not those of the arrays."""
        self.bound = bound
        self.arrays = arrays
        tokens = arrays.shape.num_tokens if num_tokens is None else num_tokens
        self._rows = {Extent.TOKENS: tokens, Extent.SAMPLED: arrays.shape.num_rows}

    def slot(self, slot: Slot) -> torch.Tensor:
        """Returns the live rows of a slot, [rows, width]."""
        return self.bound.buffers[slot.index][: self._rows[slot.extent]]

    def span(self, span: Span) -> torch.Tensor:
        """Returns the live rows of a span, [rows, width]."""
        return self.slot(span.slot)[:, span.start : span.start + span.width]

    def vector(self, name: str) -> torch.Tensor:
        """Returns a vector, f32 [N * K]."""
        return self.bound.vectors[name].flatten()

    def sequence_of(self, extent: Extent) -> torch.Tensor:
        """Returns the sequence of each live row, int32 [rows]."""
        of_tokens = self.arrays.sequence_of
        return of_tokens if extent is Extent.TOKENS else of_tokens[self.arrays.sampled_rows]
