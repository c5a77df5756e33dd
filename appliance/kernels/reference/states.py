"""Recurrent states on torch tensors: how a step carries them on, and the operators that do."""

from collections.abc import Callable, Sequence

import torch

from appliance.kernels.interface import StatePieces
from appliance.kernels.reference.activations import activate
from appliance.program.states import ShortConv, StateShape

StateSlots = list[torch.Tensor]  # of each state: [slots, *shape]


def state_slots(states: Sequence[StateShape], num_slots: int) -> StateSlots:
    """Allocates the slots. They hold NaN, so that tests find a state that is read before it was written."""
    return [torch.full((num_slots, *state.shape), torch.nan) for state in states]


def carry(slots: torch.Tensor, pieces: StatePieces, run: Callable[[slice, torch.Tensor], torch.Tensor]) -> None:
    """Calls `run` for each piece, with its tokens and its state at their begin; it returns the state at their end."""
    ends = pieces.start.tolist()
    for piece, (source, target) in enumerate(zip(pieces.source.tolist(), pieces.target.tolist(), strict=True)):
        before = torch.zeros_like(slots[0]) if source < 0 else slots[source].clone()
        slots[target] = run(slice(ends[piece], ends[piece + 1]), before)


def short_conv(
    op: ShortConv, x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    slots: torch.Tensor, pieces: StatePieces,
) -> None:  # fmt: skip
    """See ShortConv."""
    taps = weight.reshape(-1, op.kernel_size)  # [C, K]

    def run(tokens: slice, before: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat((before, x[tokens]))  # [K - 1 + T, C]
        if tokens.stop > tokens.start:
            y = (inputs.unfold(0, op.kernel_size, 1) * taps).sum(-1)
            y = y if bias is None else y + bias.flatten()
            out[tokens] = y if op.kind is None else activate(y, op.kind)
        return inputs[len(inputs) - op.kernel_size + 1 :]

    carry(slots, pieces, run)
