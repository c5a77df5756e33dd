"""Copies of blocks and states between the memory of a kernel set and memory of the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class HostMover:
    """The kernels.interface.BlockMover of a set whose memory is the host's. lanes: uint8 [blocks, bytes], the parts
    of which a block consists. states: uint8 [slots, bytes], those of a slot."""

    lanes: Sequence[np.ndarray]
    states: Sequence[np.ndarray]

    @property
    def block_bytes(self) -> int:
        return sum(lane.shape[1] for lane in self.lanes)

    @property
    def state_bytes(self) -> int:
        return sum(state.shape[1] for state in self.states)

    def store_blocks(self, blocks: Sequence[int], memory: np.ndarray, places: Sequence[int]) -> None:
        start = 0
        for lane in self.lanes:
            end = start + lane.shape[1]
            for block, place in zip(blocks, places, strict=True):
                memory[place, start:end] = lane[block]
            start = end

    def load_blocks(self, blocks: Sequence[int], memory: np.ndarray, places: Sequence[int]) -> None:
        start = 0
        for lane in self.lanes:
            end = start + lane.shape[1]
            for block, place in zip(blocks, places, strict=True):
                lane[block] = memory[place, start:end]
            start = end

    def stored_state(self, slot: int) -> np.ndarray:
        return np.concatenate([state[slot] for state in self.states])

    def load_state(self, slot: int, state: np.ndarray) -> None:
        start = 0
        for own in self.states:
            end = start + own.shape[1]
            own[slot] = state[start:end]
            start = end
