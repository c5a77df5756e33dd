"""The weights of a compiled decoder, translated one at a time when a kernel set reads them."""

import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from appliance.base.hashing import sha256_json
from appliance.checkpoint.reader import TensorReader
from appliance.kernels.layout import CanonicalWeight, WeightPieces
from appliance.layers.program import CompiledDecoder, WeightUse
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import VERSION, StoredRows, translate_matrix, translate_vector
from appliance.loading.inventory import InventoryItem, WeightError
from appliance.loading.rope import rope_table
from appliance.models.tensors import shape_of

_REORDERING = ("transpose", "unpermute_heads")  # with these, rows of a weight are not rows of the file
Progress = Callable[[int, int], None]  # (bytes read so far, total bytes)


class DecoderWeights(WeightPieces):
    """Every weight of the program by name, in program order. Nothing is cached: each lookup translates again.

    Raises WeightError, naming the tensor, if one cannot be converted to its planned form or has another shape.
    """

    def __init__(
        self,
        compiled: CompiledDecoder,
        inventory: Mapping[str, InventoryItem],
        reader: TensorReader,
        max_model_len: int,
        progress: Progress | None = None,
    ) -> None:
        self._compiled = compiled
        self._inventory = inventory
        self._reader = reader
        self._max_model_len = max_model_len
        self._progress = progress
        self._loaded_bytes = 0.0
        self._counting = threading.Lock()  # several threads may read weights
        self._following = dict(pairwise(compiled.weights))
        self._total_bytes = sum(self._stored_bytes(use) for use in compiled.weights.values())

    def __len__(self) -> int:
        return len(self._compiled.weights) + len(self._compiled.ropes)

    def __iter__(self) -> Iterator[str]:
        yield from self._compiled.weights
        yield from self._compiled.ropes

    def __getitem__(self, name: str) -> CanonicalWeight:
        if name in self._compiled.ropes:
            return rope_table(self._compiled.ropes[name], self._max_model_len)
        use = self._compiled.weights[name]
        self._read_ahead(name)
        weight = self._translate(use)
        self._count(use, 1.0)
        return weight

    @property
    def identity(self) -> str:
        """A digest of the tensors, parts and forms that the weights are made of, but not of the tensors' bytes."""
        weights = {
            name: [use.shapes, [_described(self._inventory[part]) for part in use.parts]]
            for name, use in self._compiled.weights.items()
        }
        ropes = {name: [str(rope), self._max_model_len] for name, rope in self._compiled.ropes.items()}
        return sha256_json({"version": VERSION, "weights": weights, "ropes": ropes})

    def shape(self, name: str) -> tuple[int, int]:
        use = self._compiled.weights[name]
        return sum(self._num_rows(part) for part in use.parts), use.shapes[0][1]

    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        use = self._compiled.weights[name]
        if start == 0:
            self._read_ahead(name)
        weight = self._translate(use, start, stop)
        self._count(use, (stop - start) / self.shape(name)[0])
        self._release(use, start, stop)
        return weight

    def _count(self, use: WeightUse, share: float) -> None:
        with self._counting:
            self._loaded_bytes += share * self._stored_bytes(use)
            if self._progress is not None:
                self._progress(min(round(self._loaded_bytes), self._total_bytes), self._total_bytes)

    def _release(self, use: WeightUse, start: int, stop: int) -> None:
        """Unmaps what was read: it stays in the page cache, but no longer counts as this process's memory."""
        first = 0
        for part in use.parts:
            item, num_rows = self._inventory[part], self._num_rows(part)
            begin, end = max(start - first, 0), min(stop - first, num_rows)
            first += num_rows
            if begin < end and item.source.transform not in _REORDERING:
                at, row_bytes = item.source.rows[0] if item.source.rows else 0, _part_bytes(item) // num_rows
                self._reader.release(item.tensor.name, (at + begin) * row_bytes, (at + end) * row_bytes)

    def _num_rows(self, part: str) -> int:
        item = self._inventory[part]
        return shape_of(item.tensor, item.source)[0]

    def _read_ahead(self, name: str) -> None:
        """Starts to read the next weight from disk while this one is translated and packed."""
        following = self._compiled.weights.get(self._following.get(name, ""))
        for part in following.parts if following is not None else ():
            self._reader.will_need(self._inventory[part].tensor.name)

    def _translate(self, use: WeightUse, start: int = 0, stop: int | None = None) -> CanonicalWeight:
        parts = [self._stored_rows(part) for part in use.parts]
        try:
            if len(use.shapes[0]) == 1:
                return translate_vector(parts)
            return translate_matrix(parts, self._inventory[use.parts[0]].form, use.shapes[0][1], start, stop)
        except FormatError as error:
            names = ", ".join(self._inventory[part].tensor.name for part in use.parts)
            raise WeightError(f"{names}: {error}") from error

    def _stored_rows(self, part: str) -> StoredRows:
        item = self._inventory[part]
        try:
            return StoredRows(item.tensor, item.source, self._reader.read)
        except FormatError as error:
            raise WeightError(f"{item.tensor.name}: {error}") from error

    def _stored_bytes(self, use: WeightUse) -> int:
        return sum(_part_bytes(self._inventory[part]) for part in use.parts)


def _part_bytes(item: InventoryItem) -> int:
    """Returns the bytes that one logical weight reads: its share of a fused tensor."""
    if item.source.rows is None:
        return item.tensor.size_bytes
    start, stop = item.source.rows
    shape = item.tensor.shape
    num_rows = shape[-1] if item.source.transform == "transpose" else shape[0]
    return item.tensor.size_bytes * (stop - start) // num_rows


def _described(item: InventoryItem) -> list[str]:
    return [str(item.tensor), str(item.source), str(item.form)]
