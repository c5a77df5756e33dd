"""The weights of a compiled decoder, translated one at a time when a kernel set reads them."""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from appliance.base.hashing import sha256_json
from appliance.catalog.formats import F32, WeightForm
from appliance.checkpoint.reader import TensorSource
from appliance.kernels.layout import CanonicalWeight, WeightPieces
from appliance.layers.program import CompiledDecoder, WeightUse
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.translate import VERSION, StoredRows, translate_matrix, translate_vector
from appliance.loading.inventory import InventoryItem, WeightError
from appliance.loading.position_bias import bias_table
from appliance.loading.rope import rope_table
from appliance.models.tensors import shape_of

# With these, rows of a weight are not rows of the file.
_REORDERING = ("transpose", "transpose_parts", "unpermute_heads")
# With these they are, each in one piece.
_ROW_PACKINGS = ("rows", "e4m3", "nvfp4", "nvfp4_inverse", "bitsandbytes_4", "bitsandbytes_8")
Progress = Callable[[int, int], None]  # (bytes read so far, total bytes)


class DecoderWeights(WeightPieces):
    """Every weight of the program by name, in program order. Nothing is cached: each lookup translates again.

    Raises WeightError, naming the tensor, if one cannot be converted to its planned form or has another shape.
    """

    def __init__(
        self,
        compiled: CompiledDecoder,
        inventory: Mapping[str, InventoryItem],
        reader: TensorSource,
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
        self._starts = {name: self._part_starts(use) for name, use in compiled.weights.items()}
        self._total_bytes = sum(self._stored_bytes(use) for use in compiled.weights.values())

    def __len__(self) -> int:
        return len(self._compiled.weights) + len(self._compiled.ropes) + len(self._compiled.biases)

    def __iter__(self) -> Iterator[str]:
        yield from self._compiled.weights
        yield from self._compiled.ropes
        yield from self._compiled.biases

    def __getitem__(self, name: str) -> CanonicalWeight:
        if name in self._compiled.ropes:
            return rope_table(self._compiled.ropes[name], self._max_model_len)
        if name in self._compiled.biases:
            bias = self._compiled.biases[name]
            return bias_table(bias.spec, np.asarray(self._translate(bias.source).data), self._max_model_len)
        use = self._compiled.weights[name]
        self._read_ahead(name)
        weight = self._translate(use)
        self._count(use, 1.0)
        return weight

    @property
    def identity(self) -> str:
        """A digest of the tensors, parts and forms that the weights are made of, but not of the tensors' bytes."""
        ropes = {name: [str(rope), self._max_model_len] for name, rope in self._compiled.ropes.items()}
        biases = {
            name: [
                str(bias.spec),
                self._max_model_len,
                *(_described(self._inventory[part]) for part in bias.source.parts),
            ]
            for name, bias in self._compiled.biases.items()
        }
        return sha256_json({"version": VERSION, "weights": self._made_of(), "ropes": ropes, "biases": biases})

    @property
    def translated_identity(self) -> str:
        """A digest like `identity`, which does not change with the length of computed tables."""
        return sha256_json({"version": VERSION, "weights": self._made_of()})

    @property
    def computed(self) -> Collection[str]:
        """The names of tables that are computed, at least in part, for a longest sequence."""
        return {*self._compiled.ropes, *self._compiled.biases}

    def form(self, name: str) -> WeightForm:
        """Returns the form of a weight that is not computed."""
        return self._inventory[self._compiled.weights[name].parts[0]].form if self.is_matrix(name) else F32

    def is_matrix(self, name: str) -> bool:
        """Returns whether a weight that is not computed is a matrix; else it is a vector."""
        return len(self._compiled.weights[name].shapes[0]) > 1

    def full_shape(self, name: str) -> tuple[int, int]:
        """Returns (N, K) of a weight that is not computed; a vector has one row."""
        if self.is_matrix(name):
            return self.shape(name)
        items = [self._inventory[part] for part in self._compiled.weights[name].parts]
        return 1, sum(prod(shape_of(item.tensor, item.source)) for item in items)

    def _made_of(self) -> dict[str, list[object]]:
        return {
            name: [use.shapes, [_described(self._inventory[part]) for part in use.parts]]
            for name, use in self._compiled.weights.items()
        }

    def shape(self, name: str) -> tuple[int, int]:
        return self._starts[name][-1], self._compiled.weights[name].shapes[0][1]

    def piece(self, name: str, start: int, stop: int) -> CanonicalWeight:
        use = self._compiled.weights[name]
        if start == 0:
            self._read_ahead(name)
        touched = self._touched(name, start, stop)
        first = self._starts[name][touched.start]
        some = WeightUse(use.parts[touched], use.shapes[touched], use.role)
        weight = self._translate(some, start - first, stop - first)
        self._count(use, (stop - start) / self.shape(name)[0])
        self._release(some, start - first, stop - first)
        return weight

    def _touched(self, name: str, start: int, stop: int) -> slice:
        """Returns the parts to which rows [start, stop) belong: a weight of experts has hundreds."""
        starts = self._starts[name]
        return slice(bisect_right(starts, start) - 1, bisect_left(starts, stop))

    def _part_starts(self, use: WeightUse) -> list[int]:
        """Rows before each part, and of all."""
        return [0, *accumulate(self._num_rows(part) for part in use.parts)]

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
            if begin < end and _has_rows_of_file(item):
                at, row_bytes = _first_row(item, num_rows), _part_bytes(item) // num_rows
                self._reader.release(item.tensor.name, (at + begin) * row_bytes, (at + end) * row_bytes)

    def _num_rows(self, part: str) -> int:
        item = self._inventory[part]
        return shape_of(item.tensor, item.source)[0]

    def _read_ahead(self, name: str) -> None:
        """Starts to read the next weight from disk while this one is translated and packed. What this one still
        needs comes first: a reader may have room for some of them only."""
        following = self._compiled.weights.get(self._following.get(name, ""))
        parts = (*self._compiled.weights[name].parts, *(following.parts if following is not None else ()))
        for tensor in dict.fromkeys(self._inventory[part].tensor.name for part in parts):
            self._reader.will_need(tensor)

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


def _has_rows_of_file(item: InventoryItem) -> bool:
    """Returns whether the rows of a weight are rows of the stored tensor, in one piece."""
    source = item.source
    takes_turns = source.rows is not None and len(source.rows) > 2
    in_order = source.transform not in _REORDERING and source.num_parts == 1 and not takes_turns
    return in_order and item.tensor.packing in _ROW_PACKINGS and item.tensor.bitmask is None


def _part_bytes(item: InventoryItem) -> int:
    """Returns the bytes that one logical weight reads: its share of a fused or stacked tensor."""
    source, shape = item.source, item.tensor.shape
    size = item.tensor.size_bytes
    if source.index is not None:
        size, shape = size // shape[0], shape[1:]
    if source.rows is None:
        return size
    num_rows = shape[-1] if source.transform == "transpose" else shape[0]
    return size * source.num_parts * len(range(*source.rows)) // num_rows


def _first_row(item: InventoryItem, num_rows: int) -> int:
    """Returns the row of the file with which a weight begins that is not transposed."""
    source, shape = item.source, item.tensor.shape
    before = source.rows[0] if source.rows else 0
    return before if source.index is None else before + source.index * (shape[1] if len(shape) > 1 else num_rows)


def _described(item: InventoryItem) -> list[str]:
    return [str(item.tensor), str(item.source), str(item.form)]
