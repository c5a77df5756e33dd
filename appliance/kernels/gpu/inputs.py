"""The inputs of a step on the device: one buffer, filled by one copy.

The arrays of a step lie one behind the other, each at a multiple of 64 bytes. The sampled rows have a fixed place, and
where the others lie depends on the sizes of the step alone, arrays of tokens first. So a graph that was captured for
some sizes finds them where every later step of these sizes puts them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch

from appliance.kernels.errors import StepError
from appliance.kernels.execution import ExecutionLimits
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.shapes import StepShape
from appliance.kernels.gpu.sizes import step_limits
from appliance.kernels.gpu.tiles import prefill_tiles
from appliance.kernels.interface import StatePieces, StepInputs
from appliance.program.device_memory import ALIGNMENT, input_bytes, table_columns


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step's arrays on the device, as in StepInputs, padded to `shape`, and the step itself on the host. Tokens that
    pad a step are stored nowhere, and sequences that pad it are empty. sequence_of: int32 [T], the sequence of each
    token."""

    host: StepInputs
    shape: StepShape
    token_ids: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor
    sequence_of: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    sampled_rows: torch.Tensor
    has_single: bool  # some sequence has one new token, and is not in the tiles
    tiles: Mapping[int, torch.Tensor]  # int32 [tiles, 2] of the other sequences, by the rows of a tile (prefill_tiles)
    piece_first: torch.Tensor | None = None  # of a program with states: int32 [S + 1], as in StatePieces
    pieces: torch.Tensor | None = None  # int32 [P, 4]: first token, the one behind the last, source and target
    adapter_slots: torch.Tensor | None = None  # of a set with places for adapters: int32 [T], of each token's sequence
    adapter_scales: torch.Tensor | None = None  # f32 [T]
    embeds: tuple[torch.Tensor, torch.Tensor] | None = None  # f32 [N, D] and int32 [T], as in StepEmbeds

    def row(self, at: int) -> "StepArrays":
        """Returns the arrays of one token."""
        one = slice(at, at + 1)
        return replace(
            self,
            token_ids=self.token_ids[one],
            positions=self.positions[one],
            token_types=self.token_types[one],
            sequence_of=self.sequence_of[one],
            slot_mapping=self.slot_mapping[:, one],
            adapter_slots=_some(self.adapter_slots, one),
            adapter_scales=_some(self.adapter_scales, one),
            embeds=None if self.embeds is None else (self.embeds[0], self.embeds[1][one]),
        )

    def unpadded(self) -> "StepArrays":
        """Returns the arrays of the step's own tokens and sampled rows."""
        tokens, rows = len(self.host.token_ids), len(self.host.sampled_rows)
        return replace(
            self,
            shape=StepShape.of(self.host),
            token_ids=self.token_ids[:tokens],
            positions=self.positions[:tokens],
            token_types=self.token_types[:tokens],
            sequence_of=self.sequence_of[:tokens],
            slot_mapping=self.slot_mapping[:, :tokens],
            sampled_rows=self.sampled_rows[:rows],
            adapter_slots=_some(self.adapter_slots, slice(tokens)),
            adapter_scales=_some(self.adapter_scales, slice(tokens)),
        )


def _some(values: torch.Tensor | None, tokens: slice) -> torch.Tensor | None:
    return None if values is None else values[tokens]


@dataclass(frozen=True, slots=True)
class _Array:
    """One array, the shape to which it is padded, and the number that pads it; None: what was there before, which is
    not read."""

    name: str
    values: np.ndarray
    shape: tuple[int, ...]
    padding: int | None = 0

    def store(self, target: np.ndarray) -> None:
        """Writes the padded array to int32 memory of its shape."""
        if self.values.shape != self.shape and self.padding is not None:
            target.fill(self.padding)
        target[tuple(map(slice, self.values.shape))] = self.values


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where arrays of some shapes lie: in the host's memory, and on the device by their names; and all of both."""

    shapes: list[tuple[int, ...]]
    host: list[np.ndarray]
    device: dict[str, torch.Tensor]
    staging: torch.Tensor
    buffer: torch.Tensor


class InputBuffer:
    """The buffers, for the largest step."""

    def __init__(
        self,
        limits: ExecutionLimits,
        num_groups: int,
        device: Device,
        tile_rows: Sequence[int] = (),
        *,
        has_states: bool = False,
        has_adapters: bool = False,
        all_in_tiles: bool = False,
    ) -> None:
        """tile_rows: the sizes of tiles in which kernels want the tokens of sequences that have several. all_in_tiles:
        and of those that have one. has_adapters: every step says which sequence has which, if it be none."""
        sizes = step_limits(limits)
        self._most_blocks, self._max_num_sampled = table_columns(sizes), limits.max_num_sampled
        lists = len(tile_rows)
        size = input_bytes(sizes, num_groups, lists, has_states=has_states, has_adapters=has_adapters)
        self._staging, self._buffer = device.staging(size), device.zeros(size, dtype=torch.uint8)
        self._host = self._staging.numpy()
        self._num_groups, self._tile_rows = num_groups, tuple(tile_rows)
        self._all_in_tiles, self._has_adapters = all_in_tiles, has_adapters
        self._copied, self._device = device.event(), device
        self._layout = _Layout([], [], {}, self._staging, self._buffer)  # of the last step

    @property
    def size_bytes(self) -> int:
        return self._buffer.nbytes

    def load(self, inputs: StepInputs, shape: StepShape | None = None) -> StepArrays:
        """Copies the arrays of a step to the device, padded to a shape; one with embeddings is not padded. It does not
        wait for the copy: the next call may.

        Raises StepError if the step is larger than the buffers.
        """
        shape = shape or StepShape.of(inputs)
        arrays = self._arrays_of(inputs, shape)
        layout = self._layout = self._lay_out(arrays)
        self._copied.wait()  # the host's memory is free again only then
        for array, target in zip(arrays, layout.host, strict=True):
            array.store(target)
        layout.buffer.copy_(layout.staging, non_blocking=True)
        self._copied.record()
        placed = dict(layout.device)
        tiles = {rows: placed.pop(str(rows)) for rows in self._tile_rows}
        placed["sampled_rows"] = placed["sampled_rows"][: shape.num_rows]
        if self._has_adapters:
            placed["adapter_scales"] = placed["adapter_scales"].view(torch.float32)
        is_single = shape.is_decode or bool((np.diff(inputs.query_start) == 1).any())
        has_single = is_single and not self._all_in_tiles
        given, upload = inputs.embeds, self._device.upload
        embeds = None if given is None else (upload(given.rows), upload(given.row_of))
        return StepArrays(inputs, shape, **placed, has_single=has_single, tiles=tiles, embeds=embeds)

    def _lay_out(self, arrays: Sequence[_Array]) -> _Layout:
        """Returns the places of arrays, which are those of the last step if these have the same shapes."""
        shapes = [array.shape for array in arrays]
        if shapes == self._layout.shapes:
            return self._layout
        sizes = [4 * prod(shape) for shape in shapes]
        if sum(size + ALIGNMENT for size in sizes) > len(self._host):
            raise StepError("the arrays of a step are larger than its limits allow")
        places, end = [], 0
        for size in sizes:
            places.append(slice(end, end + size))
            end = -(-(end + size) // ALIGNMENT) * ALIGNMENT
        host = [self._host[place].view(np.int32).reshape(shape) for place, shape in zip(places, shapes, strict=True)]
        device = {
            array.name: self._buffer[place].view(torch.int32).view(array.shape)
            for array, place in zip(arrays, places, strict=True)
        }
        return _Layout(shapes, host, device, self._staging[:end], self._buffer[:end])

    def _arrays_of(self, inputs: StepInputs, shape: StepShape) -> list[_Array]:
        """Returns the arrays by their fields of StepArrays, for the groups that the program has, in their order."""
        counts, groups = np.diff(inputs.query_start), self._num_groups
        own = StepShape.of(inputs)
        tokens, starts = (shape.num_tokens,), inputs.query_start
        sequence_of = np.repeat(np.arange(own.num_seqs, dtype=np.int32), counts)
        columns = inputs.block_tables.shape[2]
        if shape.is_decode:  # a sequence that pads the step has one token, as all others have
            sequence_of = np.arange(shape.num_seqs, dtype=np.int32)
            starts = np.arange(shape.num_seqs + 1, dtype=np.int32)
            columns = self._most_blocks
        types = np.zeros_like(inputs.token_ids) if inputs.token_types is None else inputs.token_types
        tables = inputs.block_tables[:groups, :, :columns]
        return [
            _Array("sampled_rows", inputs.sampled_rows, (self._max_num_sampled,)),
            _Array("token_ids", inputs.token_ids, tokens),
            _Array("positions", inputs.positions, tokens),
            _Array("token_types", types, tokens),
            _Array("sequence_of", sequence_of, tokens),
            _Array("slot_mapping", inputs.slot_mapping[:groups], (groups, *tokens), padding=-1),
            *(_adapters(inputs, counts, shape.num_tokens) if self._has_adapters else ()),
            _Array("query_start", starts, (shape.num_seqs + 1,)),
            _Array("seq_lens", inputs.seq_lens, (shape.num_seqs,)),
            _Array("block_tables", tables, (groups, shape.num_seqs, columns), padding=None),
            *(_tiles(starts, rows, skip_single=not self._all_in_tiles) for rows in self._tile_rows),
            *_pieces(inputs.states, shape.num_seqs),
        ]


def _pieces(states: StatePieces | None, num_seqs: int) -> Iterator[_Array]:
    """Yields where the pieces of each sequence begin, and the pieces, whose number nothing else depends on: they come
    last, and have a place even if there are none. Sequences that pad a step have none."""
    if states is not None:
        columns = (states.start[:-1], states.start[1:], states.source, states.target)
        yield _Array("piece_first", states.first, (num_seqs + 1,), padding=len(states.source))
        yield _Array("pieces", np.stack(columns, axis=1), (max(1, len(states.source)), 4))


def _adapters(inputs: StepInputs, counts: np.ndarray, num_tokens: int) -> Iterator[_Array]:
    """Yields the slot of the adapter of each token's sequence, and the bits of its scale; tokens that pad a step have
    none. They are by token, since graphs of tokens do not depend on how many sequences there are."""
    given, own = inputs.adapters, int(counts.sum())
    slots, scales = np.full(own, -1, np.int32), np.zeros(own, np.float32)
    if given is not None:
        slots, scales = np.repeat(given.slots, counts), np.repeat(given.scales.astype(np.float32), counts)
    yield _Array("adapter_slots", slots, (num_tokens,), padding=-1)
    yield _Array("adapter_scales", scales.view(np.int32), (num_tokens,))


def _tiles(query_start: np.ndarray, rows: int, *, skip_single: bool) -> _Array:
    tiles = prefill_tiles(query_start, rows, skip_single)
    return _Array(str(rows), tiles, tiles.shape)
