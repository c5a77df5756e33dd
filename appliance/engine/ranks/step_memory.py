"""The arrays of steps in memory that ranks share. There is a place more than steps in flight, as a late rank may still
read the one before."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.moving import SPARE_BLOCKS
from appliance.kernels.errors import ExecutableError
from appliance.kernels.interface import PastTokens, StatePieces, StepAdapters, StepInputs
from appliance.kernels.ranks import SharedMemory, pages
from appliance.kernels.step_embeds import StepEmbeds

_LINE = 64
_NESTED: Mapping[str, type[Any]] = {
    "states": StatePieces,
    "adapters": StepAdapters,
    "past": PastTokens,
    "embeds": StepEmbeds,
}
Placed = dict[str, tuple[str, tuple[int, ...], int]]  # by name: type, shape, offset


def step_bytes(config: SchedulerConfig, places: int) -> int:
    """Returns the most bytes that the arrays of steps take in so many places."""
    groups = max(1, len(config.windows))
    tokens, sequences = config.max_num_batched_tokens, config.max_num_seqs
    blocks = -(-config.max_sequence_len // config.block_size) + SPARE_BLOCKS
    numbers = tokens * (4 + groups) + sequences * (8 + groups * blocks) + 5 * config.max_num_sampled
    numbers += sequences * config.max_sequence_len  # of past tokens
    numbers += 4 * (tokens + sequences) if config.num_snapshots is not None else 0
    numbers += tokens * (config.embeds_width + 1) if config.embeds_width else 0
    return places * pages(4 * numbers + _LINE * 32)


class StepMemory:
    def __init__(self, memory: SharedMemory, offset: int, size_bytes: int, places: int) -> None:
        """size_bytes: those of step_bytes."""
        self._places, self._place_bytes = places, size_bytes // places
        self._map = memory.map(offset, size_bytes)
        self._turn = 0

    def put(self, inputs: StepInputs) -> Placed:
        """Copies the arrays into the place whose turn it is. Raises ExecutableError if they are larger than planned."""
        self._turn = (self._turn + 1) % self._places
        at, end, placed = self._turn * self._place_bytes, (self._turn + 1) * self._place_bytes, Placed()
        for name, array in arrays_of(inputs):
            if at + array.nbytes > end:
                raise ExecutableError("the arrays of a step are larger than any step of the plan")
            target = np.frombuffer(self._map, array.dtype, array.size, at).reshape(array.shape)
            target[...] = array
            placed[name] = (array.dtype.str, array.shape, at)
            at += -(-array.nbytes // _LINE) * _LINE
        return placed

    def get(self, placed: Placed) -> StepInputs:
        """Returns a step whose arrays are those in the memory."""
        return inputs_of(
            {
                name: np.frombuffer(self._map, np.dtype(dtype), int(np.prod(shape)), at).reshape(shape)
                for name, (dtype, shape, at) in placed.items()
            }
        )


def inputs_of(arrays: Mapping[str, np.ndarray]) -> StepInputs:
    """Returns a step of the arrays that `arrays_of` named."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        part, _, field = name.rpartition(".")
        if part:
            found.setdefault(part, {})[field] = array
        else:
            found[name] = array
    nested = {name: kind(**found[name]) for name, kind in _NESTED.items() if name in found}
    return StepInputs(**{**found, **nested})


def arrays_of(inputs: StepInputs) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays of a step that are there."""
    for field in dataclasses.fields(StepInputs):
        value = getattr(inputs, field.name)
        if isinstance(value, PastTokens):
            value = _used(value)
        if isinstance(value, np.ndarray):
            yield field.name, value
        elif field.name in _NESTED and value is not None:
            for part in dataclasses.fields(value):
                yield f"{field.name}.{part.name}", getattr(value, part.name)


def _used(past: PastTokens) -> PastTokens:
    """Returns past tokens with a table of those rows and columns alone that count: the whole table is as large as all
    contexts together."""
    rows, places = np.unique(past.row, return_inverse=True)
    table = past.table[rows, : max(1, int(past.count.max(initial=0)))]
    return PastTokens(np.ascontiguousarray(table), places.astype(np.int32), past.count)
