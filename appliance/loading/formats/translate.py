"""Translates stored rows to one canonical weight, for every format, with joins along rows and in bounded memory."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from msgspec.structs import replace

from appliance.catalog.formats import WeightForm
from appliance.checkpoint.facts import TensorFacts
from appliance.kernels.layout import PAIRED_LAYOUTS, CanonicalWeight, Layout
from appliance.layers.spec import WeightSource
from appliance.loading.formats import blocks32, books, iq, k_quants, ternary
from appliance.loading.formats.aqlm import AdditiveMatrix
from appliance.loading.formats.awq import AwqMatrix
from appliance.loading.formats.bits import Array
from appliance.loading.formats.bitsandbytes import EightBitMatrix, FourBitMatrix
from appliance.loading.formats.codes import CodeTensors
from appliance.loading.formats.dense import ELEMENT_TYPES, dense_weight, narrow, widen
from appliance.loading.formats.e2m1 import MicroscalingMatrix, NvMatrix
from appliance.loading.formats.e4m3 import E4m3Matrix, Order, TransposedBlocks, takes_whole_blocks
from appliance.loading.formats.gptq import GptqMatrix
from appliance.loading.formats.groups import FormatError
from appliance.loading.formats.hqq import HqqMatrix
from appliance.loading.formats.matrices import MatrixReader, Quantized, Read, Rows
from appliance.loading.formats.rounding import quantize
from appliance.loading.formats.sparse import SparseRows
from appliance.loading.formats.stacks import matrix_of_stack
from appliance.loading.formats.transposed import TransposedParts

VERSION = 4  # increased when the canonical weights of a checkpoint change, so that cached packed weights are renewed
CHUNK_ELEMENTS = 1 << 18  # translated at a time, so that temporaries fit in the processor's caches

BLOCK_READERS: dict[str, Callable[[Array], Quantized]] = {
    "q4_0": blocks32.read_q4_0,
    "q4_1": blocks32.read_q4_1,
    "q5_0": blocks32.read_q5_0,
    "q5_1": blocks32.read_q5_1,
    "q8_0": blocks32.read_q8_0,
    "q2_k": k_quants.read_q2_k,
    "q3_k": k_quants.read_q3_k,
    "q4_k": k_quants.read_q4_k,
    "q5_k": k_quants.read_q5_k,
    "q6_k": k_quants.read_q6_k,
    "iq4_nl": books.read_iq4_nl,
    "iq4_xs": books.read_iq4_xs,
    "iq1_s": iq.read_iq1_s,
    "iq1_m": iq.read_iq1_m,
    "iq2_xxs": iq.read_iq2_xxs,
    "iq2_xs": iq.read_iq2_xs,
    "iq2_s": iq.read_iq2_s,
    "iq3_xxs": iq.read_iq3_xxs,
    "iq3_s": iq.read_iq3_s,
    "mxfp4": books.read_mxfp4,
    "q1_0": ternary.read_q1_0,
    "q2_0": ternary.read_q2_0,
    "tq1_0": ternary.read_tq1_0,
    "tq2_0": ternary.read_tq2_0,
}
MATRIX_READERS: dict[str, Callable[[TensorFacts, Read], MatrixReader]] = {
    "gptq": GptqMatrix,
    "gptq_v2": GptqMatrix,
    "awq": AwqMatrix,
    "e4m3": E4m3Matrix,
    "mxfp4": MicroscalingMatrix,
    "nvfp4": NvMatrix,
    "nvfp4_inverse": NvMatrix,
    "bitsandbytes_4": FourBitMatrix,
    "bitsandbytes_8": EightBitMatrix,
    "hqq": HqqMatrix,
    "aqlm": AdditiveMatrix,
}
# The transforms of values or rows, which apply to f32.
_CHANGES: dict[str, Callable[[Array], Array]] = {
    "add_one": lambda values: values + np.float32(1.0),
    "log_of_negated": lambda values: np.log(-values),
    "unit_rows": lambda rows: rows / np.maximum(np.sqrt(np.square(rows).sum(axis=1, keepdims=True)), np.float32(1e-12)),
}
DENSE_LAYOUTS = ("f32", "f16", "bf16")
_NO_ROWS = np.empty((0, 0), np.uint8)


class StoredRows:
    """One checkpoint tensor as the rows that the decoder needs, after the source's transform and slice.

    A vector is a column: each element is a row. `read` gives the stored bytes of the tensor and of its parts, by name.
    Raises FormatError if tensor and source do not match.
    """

    def __init__(self, tensor: TensorFacts, source: WeightSource, read: Read) -> None:
        if source.index is not None:
            tensor, read = matrix_of_stack(tensor, source.index, read)
            source = replace(source, index=None)
        self.storage = tensor.storage
        self._tensor = tensor
        if (tensor.scale is not None or tensor.packing != "rows") and len(tensor.shape) != 2:
            raise FormatError(f"a matrix of a stack is asked of a tensor of the shape {tensor.shape}")
        self._codes = None if tensor.scale is None else CodeTensors(tensor, read)
        self._change = _CHANGES.get(source.transform)
        self._matrix = _matrix_reader(tensor, source, read)
        self._transposed = _transposed_parts(tensor, source, read) if self._matrix is None else None
        has_rows = self._matrix is None and self._transposed is None
        self._rows = _transformed_rows(tensor, source, read) if has_rows else _NO_ROWS
        self._scale = np.float32(source.scale)
        num_rows = len(self._rows) if self._matrix is None else self._matrix.num_rows
        if source.transform == "transpose_parts":
            self._order, self._range = None, range(num_rows if self._transposed is None else len(self._transposed))
            return
        self._order = _order(num_rows, source)
        self._range = _range_of(num_rows, source) if self._order is None else range(len(self._order))

    def __len__(self) -> int:
        return len(self._range)

    @property
    def is_quantized(self) -> bool:
        """Rows can be had as codes; transposed and changed ones are floats."""
        return self._transposed is None and self._change is None and _is_quantized(self._tensor)

    @property
    def has_codes(self) -> bool:
        """Returns whether the tensor is stored in a quantized type, even if these rows are not to be had as codes."""
        return _is_quantized(self._tensor)

    def stored(self, start: int, stop: int) -> Array:
        """Returns rows as stored: bytes of quantized types, else elements."""
        return self._rows[self._places(start, stop)]

    def groups(self, start: int, stop: int) -> Quantized:
        """Returns rows of a quantized type."""
        if self._matrix is not None:
            return self._matrix.groups(self._places(start, stop))
        if self._codes is None:
            return BLOCK_READERS[self.storage](self.stored(start, stop))
        return self._codes.groups(self.stored(start, stop), self._places(start, stop))

    def _places(self, start: int, stop: int) -> Rows:
        asked = self._range[start:stop]
        window = slice(asked.start, asked.stop, asked.step)
        return window if self._order is None else self._order[window]

    def is_plain(self, layout: str) -> bool:
        """Returns whether the mapped bytes already have the dense layout."""
        rows = self._rows
        if isinstance(rows, SparseRows):
            return False
        unchanged = self._order is None and self._change is None and self._scale == 1 and self._range.step == 1
        is_dense = self.storage == layout and not _is_quantized(self._tensor)  # iq4_nl is a storage and a layout
        is_as_stored = is_dense and unchanged and self._transposed is None
        return is_as_stored and rows.flags.c_contiguous and rows.flags.aligned

    def values(self, start: int, stop: int) -> Array:
        """Returns f32 rows. Quantized types are dequantized."""
        if self._transposed is not None:
            return self._transposed.values(self._places(start, stop))
        if _is_quantized(self._tensor):
            values = self.groups(start, stop).dequantize()
        else:
            values = widen(self.stored(start, stop), self.storage)
        values = values if self._change is None else self._change(values)
        return values if self._scale == 1 else values * self._scale


def translate_matrix(
    parts: Sequence[StoredRows], form: WeightForm, num_columns: int, start: int = 0, stop: int | None = None
) -> CanonicalWeight:
    """Returns rows [start, stop) of the joined parts in `form`; a single part that has the form already is a view."""
    stop = sum(len(part) for part in parts) if stop is None else stop
    if len(parts) == 1 and parts[0].is_plain(form.layout):
        return dense_weight(parts[0].stored(start, stop), form.layout)
    if form.is_quantized and form.group_size is None:
        form = replace(form, group_size=num_columns)
    whole = _empty(form, stop - start, num_columns)
    chunk = max(1, CHUNK_ELEMENTS // num_columns)
    first = 0  # the first row of the current part
    for part in parts:
        begin, end = max(start - first, 0), min(stop - first, len(part))
        for row in range(begin, end, chunk):
            _place(whole, first + row - start, _translate_rows(part, row, min(row + chunk, end), form))
        first += len(part)
    return whole


def translate_vector(parts: Sequence[StoredRows]) -> CanonicalWeight:
    """Returns the joined parts as f32 [1, N]."""
    values = [part.values(0, len(part)).reshape(-1) for part in parts]
    return dense_weight(values[0] if len(values) == 1 else np.concatenate(values), "f32")


def _translate_rows(part: StoredRows, start: int, stop: int, form: WeightForm) -> CanonicalWeight:
    is_dense = form.layout in DENSE_LAYOUTS
    if part.is_quantized and not is_dense:
        return part.groups(start, stop).to_form(form)
    if part.is_plain(form.layout):
        return dense_weight(part.stored(start, stop), form.layout)
    if form.layout == "f8" and part.has_codes:  # they would be rounded a second time, which the plan does not say
        raise FormatError(f"codes of {part.storage} that change their places are not rounded to f8")
    values = part.values(start, stop)
    return dense_weight(narrow(values, form.layout), form.layout) if is_dense else quantize(values, form)


def _transposed_parts(tensor: TensorFacts, source: WeightSource, read: Read) -> TransposedParts | None:
    if source.transform != "transpose_parts":
        return None
    return TransposedParts(StoredRows(tensor, replace(source, transform="none"), read), source.num_parts)


def _matrix_reader(tensor: TensorFacts, source: WeightSource, read: Read) -> MatrixReader | None:
    """Returns the reader of a matrix that is not stored row by row, else None."""
    if tensor.packing == "rows":
        return None
    if source.transform == "transpose_parts":
        order = _order(tensor.shape[0], source)
        parts = None if order is None else order.reshape(source.num_parts, -1)
        return (
            TransposedBlocks(tensor, read, parts) if parts is not None and takes_whole_blocks(tensor, parts) else None
        )
    if (source.transform == "transpose") != tensor.is_transposed:
        raise FormatError(f"{tensor.packing} matrices cannot be transposed")
    return MATRIX_READERS[tensor.packing](tensor, read)


def _is_quantized(tensor: TensorFacts) -> bool:
    return tensor.storage in BLOCK_READERS or tensor.scale is not None or tensor.packing != "rows"


def _transformed_rows(tensor: TensorFacts, source: WeightSource, read: Read) -> Array | SparseRows:
    if tensor.bitmask is not None:
        if source.transform == "transpose":
            raise FormatError("sparse matrices cannot be transposed")
        return SparseRows(tensor, read)
    raw = read(tensor.name)
    shape, is_quantized = tensor.shape, _is_quantized(tensor)
    if is_quantized:
        rows = raw.reshape(prod(shape[:-1]), -1)
    elif tensor.storage in ELEMENT_TYPES:
        rows = raw.view(ELEMENT_TYPES[tensor.storage]).reshape(shape if len(shape) > 1 else (*shape, 1))
    else:
        raise FormatError(f"the storage {tensor.storage} is not in this version")
    if source.transform == "transpose" and len(shape) > 1:
        if is_quantized:
            raise FormatError(f"{tensor.storage} rows cannot be transposed")
        return rows.T
    return rows


def _range_of(num_rows: int, source: WeightSource) -> range:
    """Returns which of so many rows the source takes. Raises FormatError if there are fewer."""
    rows = range(*(source.rows or (0, num_rows)))
    if not 0 <= rows.start < rows.stop <= num_rows:
        raise FormatError(f"rows {rows.start} to {rows.stop} are asked of {num_rows}")
    return rows


def _order(num_rows: int, source: WeightSource) -> Order | None:
    """Returns the stored row of each row, or None if they have the order of the file."""
    if source.num_parts > 1:
        if num_rows % source.num_parts:
            raise FormatError(f"{num_rows} rows do not divide into {source.num_parts} parts")
        size = num_rows // source.num_parts
        starts = np.arange(0, num_rows, size)
        order: Order = (starts[:, None] + np.asarray(_range_of(size, source))).reshape(-1)
        return order
    if source.transform == "unpermute_heads":
        rows = _range_of(num_rows, source)
        return _head_order(num_rows, source.num_heads)[rows.start : rows.stop : rows.step]
    return None


def _head_order(num_rows: int, num_heads: int) -> Order:
    """Returns the stored row of each row: it reverses llama.cpp's permutation (LlamaModel.permute in its converter)."""
    if num_heads <= 0 or num_rows % (2 * num_heads):
        raise FormatError(f"{num_rows} rows do not divide into {num_heads} heads with paired rows")
    stored = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)


def _empty(form: WeightForm, num_rows: int, num_columns: int) -> CanonicalWeight:
    if form.group_size is None:
        types = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
        return dense_weight(np.empty((num_rows, num_columns), types[form.layout]), form.layout)
    if num_columns % form.group_size:
        raise FormatError(f"{num_columns} columns do not divide into groups of {form.group_size}")
    width = num_columns // 2 if form.layout in PAIRED_LAYOUTS else num_columns
    data = np.empty((num_rows, width), np.int8 if form.layout == "int8" else np.uint8)
    groups = (num_rows, num_columns // form.group_size)
    kind = {1: np.uint8, 2: np.float16, 4: np.float32}[form.scale_bytes]
    return CanonicalWeight(
        layout=Layout(form.layout),
        out_features=num_rows,
        in_features=num_columns,
        data=data,
        scale=np.empty(groups, kind),
        offset=np.empty(groups, kind) if form.has_offset else None,
        group_size=form.group_size,
        sub_scale=_empty_factors(form, num_rows, num_columns),
        sub_offset=_empty_factors(form, num_rows, num_columns) if form.has_offset else None,
        sub_group_size=form.sub_group_size,
    )


def _empty_factors(form: WeightForm, num_rows: int, num_columns: int) -> Array | None:
    return None if form.sub_group_size is None else np.empty((num_rows, num_columns // form.sub_group_size), np.int8)


def _place(whole: CanonicalWeight, row: int, piece: CanonicalWeight) -> None:
    rows = slice(row, row + piece.out_features)
    whole.data[rows] = piece.data
    for to, own in (
        (whole.scale, piece.scale),
        (whole.offset, piece.offset),
        (whole.sub_scale, piece.sub_scale),
        (whole.sub_offset, piece.sub_offset),
    ):
        if to is not None:
            to[rows] = 0 if own is None else own
