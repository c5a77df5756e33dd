"""The seam between the sampler and kernels that draw."""

from typing import NamedTuple, Protocol

import torch

from appliance.kernels.sampling import SamplingBatch


class DrawKind(NamedTuple):
    """What decides the kernels of a draw: rows, whether some row keeps a number of tokens, or a share, and whether all
    take the largest logit."""

    num_rows: int
    by_count: bool
    by_mass: bool
    is_greedy: bool


class Draws(Protocol):
    """Filters and draws by kernels, in memory of its own."""

    def load(self, batch: SamplingBatch) -> DrawKind:
        """Copies a batch's parameters to the device, and does not wait for the copy."""

    def run(self, logits: torch.Tensor, kind: DrawKind, out: torch.Tensor) -> None:
        """Draws with the parameters that were loaded last, from logits f32 [R, V] to out int32 [R]."""

    def draw(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        """Does both, and returns int32 [R], as sampler.Draw."""
