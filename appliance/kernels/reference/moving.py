"""Copies of blocks and states between torch tensors, on any device, and memory of the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class TensorMover:
    """The kernels.interface.BlockMover of tensors. lanes: [blocks, ...] of any type, the parts of which a block
    consists. states: [slots, ...], those of a slot."""

    lanes: Sequence[torch.Tensor]
    states: Sequence[torch.Tensor]

    @property
    def block_bytes(self) -> int:
        return sum(lane[0].nbytes for lane in self.lanes)

    @property
    def state_bytes(self) -> int:
        return sum(state[0].nbytes for state in self.states)

    @torch.inference_mode()
    def store_blocks(self, blocks: Sequence[int], memory: np.ndarray, places: Sequence[int]) -> None:
        start, rows = 0, list(places)
        for lane in self.lanes:
            stored = _bytes(lane)[list(blocks)].cpu().numpy()
            memory[rows, start : start + stored.shape[1]] = stored
            start += stored.shape[1]

    @torch.inference_mode()
    def load_blocks(self, blocks: Sequence[int], memory: np.ndarray, places: Sequence[int]) -> None:
        start, rows = 0, list(places)
        for lane in self.lanes:
            of_blocks = _bytes(lane)
            end = start + of_blocks.shape[1]
            of_blocks[list(blocks)] = torch.from_numpy(memory[rows, start:end]).to(lane.device)
            start = end

    @torch.inference_mode()
    def stored_state(self, slot: int) -> np.ndarray:
        stored: np.ndarray = torch.cat([_bytes(state)[slot] for state in self.states]).cpu().numpy()
        return stored

    @torch.inference_mode()
    def load_state(self, slot: int, state: np.ndarray) -> None:
        start = 0
        for slots in self.states:
            of_slots = _bytes(slots)
            end = start + of_slots.shape[1]
            of_slots[slot] = torch.from_numpy(state[start:end]).to(slots.device)
            start = end


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a contiguous tensor as uint8 [rows, bytes]."""
    return tensor.view(len(tensor), -1).view(torch.uint8)
