"""The weights of one rank as they were written for it: its own files are mapped, and those of no other rank."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.reader import TensorReader
from appliance.checkpoint.safetensors import read_header
from appliance.checkpoint.sharded_state import INDEX, WRITE_HINT, RankState, metadata_of, read_index
from appliance.kernels.layout import CanonicalWeight, WeightPieces
from appliance.loading.stored_form import Planned, stored_arrays, stored_names, stored_weight
from appliance.loading.weights import Progress


@contextmanager
def open_share(
    facts: ModelFacts, planned: Planned, rank: int, progress: Progress | None = None
) -> Iterator["StoredShare"]:
    """Opens the weights that were written for a rank. planned: those that the plan has for it, of which only computed
    tables are read. Raises CheckpointError if they are others, or the files are broken."""
    root = Path(facts.root)
    index = read_index(root)
    state = index.ranks[rank] if rank < len(index.ranks) else None
    if state is None or state.identity != planned.translated_identity:
        shards = index.shards
        problem = f"rank {rank} of this plan takes other weights than those that appliance {shards.written_by} wrote"
        raise CheckpointError(INDEX, f"{problem} for {shards}", WRITE_HINT)
    tensors = {tensor.name: tensor for tensor in _tensors(root, state)}
    _check(planned, tensors)
    with TensorReader(root, tensors.values()) as reader:
        yield StoredShare(reader, planned, progress)


class StoredShare(WeightPieces):
    """The weights of a rank. Pieces are copies, so that the pages that they lay in are given back at once."""

    def __init__(self, reader: TensorReader, planned: Planned, progress: Progress | None) -> None:
        self._reader, self._planned, self._progress = reader, planned, progress
        names = stored_names(planned)
        self._weights = {name: stored_weight(planned, name) for name in names}
        self._arrays = {name: list(stored_arrays(planned, name)) for name in names}
        self._following = dict(pairwise(names))
        self._counting, self._loaded_bytes = threading.Lock(), 0  # several threads may read weights
        self._total_bytes = sum(each.size_bytes for arrays in self._arrays.values() for each in arrays)

    def __len__(self) -> int:
        return len(self._planned)

    def __iter__(self) -> Iterator[str]:
        yield from self._planned

    def __getitem__(self, name: str) -> CanonicalWeight:
        if name not in self._weights:
            return self._planned[name]
        return self.piece(name, 0, self._weights[name].rows)

    def shape(self, name: str) -> tuple[int, int]:
        weight = self._weights[name]
        return weight.rows, weight.columns

    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        weight = self._weights[name]
        if start == 0:
            self._read_ahead(name)
        arrays = {each.name: self._rows(each.tensor, start, stop) for each in self._arrays[name]}
        self._count(sum(each.nbytes for each in arrays.values()))
        return CanonicalWeight(
            layout=weight.layout,
            out_features=stop - start,
            in_features=weight.columns,
            data=arrays["data"],
            scale=arrays.get("scale"),
            offset=arrays.get("offset"),
            group_size=weight.group_size,
            sub_scale=arrays.get("sub_scale"),
            sub_offset=arrays.get("sub_offset"),
            sub_group_size=weight.sub_group_size,
        )

    def _rows(self, tensor: str, start: int, stop: int) -> np.ndarray:
        rows = self._reader.array(tensor)
        found = rows[start:stop].copy()
        self._reader.release(tensor, start * rows.strides[0], stop * rows.strides[0])
        return found

    def _read_ahead(self, name: str) -> None:
        for each in (name, self._following.get(name)):
            for array in () if each is None else self._arrays[each]:
                self._reader.will_need(array.tensor)

    def _count(self, num_bytes: int) -> None:
        with self._counting:
            self._loaded_bytes += num_bytes
            if self._progress is not None:
                self._progress(min(self._loaded_bytes, self._total_bytes), self._total_bytes)


def _tensors(root: Path, state: RankState) -> Iterator[TensorFacts]:
    """Yields the tensors of a rank's files. Raises CheckpointError if one has another size than it was written with,
    or was written under another name."""
    for name, size in state.files.items():
        try:
            found = (root / name).stat().st_size
        except OSError as error:
            raise CheckpointError(name, f"cannot be read: {error.strerror}", WRITE_HINT) from error
        if found != size:
            raise CheckpointError(name, f"has {found} bytes, and was written with {size}", "copy it again")
        header = read_header(root, name)
        if header.metadata != metadata_of(name):
            raise CheckpointError(name, "is another file than was written under this name", "copy it again")
        yield from header.tensors


def _check(planned: Planned, tensors: Mapping[str, TensorFacts]) -> None:
    """Raises CheckpointError unless the files have the planned weights, each in arrays of the sizes of its form."""
    for name in stored_names(planned):
        for array in stored_arrays(planned, name):
            found = tensors.get(array.tensor)
            if found is None or (found.storage, found.shape) != (array.storage, array.shape):
                file = INDEX if found is None else found.file
                raise CheckpointError(file, f"{array.tensor} is not as it was written", WRITE_HINT)
