"""What an operator's implementation sees of a step: its slots, weights, caches, states and inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from appliance.kernels.gpu.adapters import DeviceAdapters
from appliance.kernels.gpu.caches import PagedCache
from appliance.kernels.gpu.collectives import Collectives
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.expert_tables import DeviceTable
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
    collectives: Collectives | None = None  # of one of several ranks
    tables: Mapping[int, DeviceTable] = field(default_factory=dict)  # of the mixtures whose experts have places
    fixed_rows: int = 0  # of products by torch, where rows are to round alike in every batch (products.by_rows)


class DeviceStep:
    """One step: its arrays, and the live rows of every slot."""

    def __init__(
        self, bound: BoundModel, arrays: StepArrays, num_tokens: int | None = None, only: int | None = None
    ) -> None:
        """num_tokens: of slots with a row for each token, where that is not those of the arrays. only: the one row of
        every slot that is live."""
        self.bound = bound
        self.arrays = arrays
        tokens = arrays.shape.num_tokens if num_tokens is None else num_tokens
        self._rows = {Extent.TOKENS: tokens, Extent.SAMPLED: arrays.shape.num_rows}
        self._only = only
        self.known: dict[object, object] = {}  # what operators found out of this step, for the next ones

    def num_rows(self, extent: Extent) -> int:
        """Returns how many rows of slots of an extent are live."""
        return self._rows[extent]

    def row(self, extent: Extent, at: int) -> "DeviceStep":
        """Returns the step as operators of an extent see it that compute row `at` alone."""
        return DeviceStep(self.bound, self.arrays.row(at) if extent is Extent.TOKENS else self.arrays, only=at)

    def slot(self, slot: Slot) -> torch.Tensor:
        """Returns the live rows of a slot, [rows, width]."""
        buffer = self.bound.buffers[slot.index]
        return buffer[: self._rows[slot.extent]] if self._only is None else buffer[self._only : self._only + 1]

    def span(self, span: Span) -> torch.Tensor:
        """Returns the live rows of a span, [rows, width]."""
        return self.slot(span.slot)[:, span.start : span.start + span.width]

    def vector(self, name: str) -> torch.Tensor:
        """Returns a vector, f32 [N * K]."""
        return self.bound.vectors[name].flatten()

    def sequence_of(self, extent: Extent) -> torch.Tensor:
        """Returns the sequence of each live row, int32 [rows]."""
        return self.by_row(self.arrays.sequence_of, extent)

    def by_row(self, of_tokens: torch.Tensor, extent: Extent) -> torch.Tensor:
        """Returns what each live row has of an array with a number for each token, [rows]."""
        found = of_tokens if extent is Extent.TOKENS else of_tokens[self.arrays.sampled_rows]
        if self._only is None or extent is Extent.TOKENS:
            return found
        return found[self._only : self._only + 1]
