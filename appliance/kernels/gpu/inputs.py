"""The inputs of a step on the device: one buffer, filled by one copy.

The arrays of a step lie one behind the other, each at a multiple of 64 bytes; where they lie depends on the sizes of
the step alone. So a graph that was captured for some sizes finds them where every later step of these sizes puts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from appliance.kernels.errors import StepError
from appliance.kernels.execution import ExecutionLimits
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.tiles import num_prefill_tiles, prefill_tiles
from appliance.kernels.interface import StepInputs

SPARE_COLUMNS = 8  # of block tables, which may have more columns than the longest sequence has blocks
_ALIGNMENT = 64  # bytes; Triton compiles other code for pointers that are not multiples of 16


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step's arrays on the device, as in StepInputs, and the same on the host. sequence_of: int32 [T], the sequence
    of each token."""

    host: StepInputs
    token_ids: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor
    sequence_of: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    sampled_rows: torch.Tensor
    has_single: bool  # some sequence has one new token
    tiles: Mapping[int, torch.Tensor]  # int32 [tiles, 2] of the other sequences, by the rows of a tile (prefill_tiles)


class InputBuffer:
    """The buffers, for the largest step."""

    def __init__(self, limits: ExecutionLimits, num_groups: int, device: Device, tile_rows: Sequence[int] = ()) -> None:
        """tile_rows: the sizes of tiles in which kernels want the tokens of sequences that have several."""
        tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        most_blocks = -(-limits.max_model_len // limits.block_size) + SPARE_COLUMNS
        numbers = tokens * (4 + num_groups) + 2 * seqs + 1 + num_groups * seqs * most_blocks + limits.max_num_sampled
        numbers += sum(2 * num_prefill_tiles(tokens, seqs, rows) for rows in tile_rows)
        size = 4 * numbers + (9 + len(tile_rows)) * _ALIGNMENT
        self._staging, self._buffer = device.staging(size), device.zeros(size, dtype=torch.uint8)
        self._host = self._staging.numpy()
        self._num_groups, self._tile_rows = num_groups, tuple(tile_rows)
        self._copied = device.event()

    @property
    def size_bytes(self) -> int:
        return self._buffer.nbytes

    def load(self, inputs: StepInputs) -> StepArrays:
        """Copies the arrays of a step to the device. It does not wait for the copy: the next call may.

        Raises StepError if the step is larger than the buffers.
        """
        counts = np.diff(inputs.query_start)
        arrays = {
            **_arrays_of(inputs, counts, self._num_groups),
            **{str(rows): prefill_tiles(inputs.query_start, rows) for rows in self._tile_rows},
        }
        if sum(4 * array.size + _ALIGNMENT for array in arrays.values()) > len(self._host):
            raise StepError("the arrays of a step are larger than its limits allow")
        self._copied.wait()  # the host's memory is free again only then
        places: dict[str, slice] = {}
        end = 0
        for name, array in arrays.items():
            places[name] = slice(end, end + 4 * array.size)
            self._host[places[name]].view(np.int32)[:] = array.reshape(-1)
            end = -(-places[name].stop // _ALIGNMENT) * _ALIGNMENT
        self._buffer[:end].copy_(self._staging[:end], non_blocking=True)
        self._copied.record()
        placed = {
            name: self._buffer[places[name]].view(torch.int32).view(array.shape) for name, array in arrays.items()
        }
        tiles = {rows: placed.pop(str(rows)) for rows in self._tile_rows}
        return StepArrays(inputs, **placed, has_single=bool((counts == 1).any()), tiles=tiles)


def _arrays_of(inputs: StepInputs, counts: np.ndarray, num_groups: int) -> Mapping[str, np.ndarray]:
    """Returns the int32 arrays by their fields of StepArrays, for the groups that the program has. counts: the new
    tokens of each sequence."""
    types = np.zeros_like(inputs.token_ids) if inputs.token_types is None else inputs.token_types
    return {
        "token_ids": inputs.token_ids,
        "positions": inputs.positions,
        "token_types": types,
        "sequence_of": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        "query_start": inputs.query_start,
        "seq_lens": inputs.seq_lens,
        "sampled_rows": inputs.sampled_rows,
        "slot_mapping": inputs.slot_mapping[:num_groups],
        "block_tables": inputs.block_tables[:num_groups],
    }
