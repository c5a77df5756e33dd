"""Packs canonical weights in pieces and on several threads, so that little is in memory twice at any moment."""

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.errors import BindError
from appliance.kernels.layout import (
    BOOK_LAYOUTS,
    CODED_LAYOUTS,
    INTEGER_LAYOUTS,
    PAIRED_LAYOUTS,
    CanonicalWeight,
    Layout,
    WeightPieces,
)

PIECE_ELEMENTS = 1 << 20  # translated and packed by one thread at a time
PANEL = 16  # rows that are packed together
_UNSUPPORTED = 3  # APPL_UNSUPPORTED

_DATA_TYPES = {
    Layout.F32: np.dtype(np.float32),
    Layout.F16: np.dtype(np.float16),
    Layout.BF16: np.dtype(np.uint16),
    Layout.INT8: np.dtype(np.int8),
    Layout.INT4: np.dtype(np.uint8),
    Layout.INT5: np.dtype(np.uint8),
    Layout.INT6: np.dtype(np.uint8),
    **dict.fromkeys(CODED_LAYOUTS, np.dtype(np.uint8)),
}


@dataclass(slots=True)
class _Target:
    """A packed weight that is being filled. The first piece that is translated decides its form."""

    name: str
    handle: ctypes.c_void_p | None = None
    needs_offsets: bool = False  # a later piece has offsets, but the form has none
    lock: threading.Lock = field(default_factory=threading.Lock)


class Packer:
    """Packs matrices into a pool's memory. `vectors` and `matrices` hold the finished weights."""

    def __init__(
        self,
        library: Library,
        pool: ctypes.c_void_p,
        matrices: frozenset[str],
        into: Mapping[str, ctypes.c_void_p] = MappingProxyType({}),
    ) -> None:
        """into: packed matrices that are filled again, by name; memory is taken for the others."""
        self._into = into
        self.matrices: dict[str, ctypes.c_void_p] = {}
        self.vectors: dict[str, np.ndarray] = {}
        self.created: list[ctypes.c_void_p] = []  # all handles to destroy, also after an error
        self._library = library
        self._functions = library.functions
        self._pool = pool
        self._matrix_names = matrices
        self._allocating = threading.Lock()  # the pool's store is not thread-safe

    def pack(self, weights: Mapping[str, CanonicalWeight], names: Sequence[str], num_threads: int) -> None:
        """Reads and packs each weight of `names` in order, its pieces on several threads. Raises BindError."""
        targets = [_Target(name, self._into.get(name)) for name in names]
        pieces = (piece for target in targets for piece in self._pieces(weights, target))
        with ThreadPoolExecutor(num_threads, thread_name_prefix="pack") as workers:
            pending: set[Future[None]] = set()
            try:
                for target, rows in pieces:
                    pending.add(workers.submit(self._do, weights, target, rows))
                    if len(pending) > num_threads:
                        pending = _first_done(pending)
                while pending:
                    pending = _first_done(pending)
            finally:
                workers.shutdown(cancel_futures=True)
        for target in targets:
            if target.needs_offsets:
                if target.name in self._into:
                    raise BindError(f"weight {target.name!r} has offsets now, and had none when it was packed")
                self._pack_with_offsets(weights, target)
            if target.handle is not None:
                self.matrices[target.name] = target.handle

    def _pieces(
        self, weights: Mapping[str, CanonicalWeight], target: _Target
    ) -> Iterator[tuple[_Target, tuple[int, int] | None]]:
        """Yields ranges of rows; None for a weight in one piece."""
        if target.name not in self._matrix_names or not isinstance(weights, WeightPieces):
            yield target, None
            return
        num_rows, num_columns = weights.shape(target.name)
        step = max(PANEL, PIECE_ELEMENTS // num_columns // PANEL * PANEL)
        for start in range(0, num_rows, step):
            yield target, (start, min(start + step, num_rows))

    def _do(self, weights: Mapping[str, CanonicalWeight], target: _Target, rows: tuple[int, int] | None) -> None:
        name = target.name
        if name not in self._matrix_names:
            self.vectors[name] = as_floats(name, weights[name])
            return
        if rows is None:
            weight = weights[name]
            num_rows, start = weight.out_features, 0
        else:
            assert isinstance(weights, WeightPieces)
            num_rows, start = weights.shape(name)[0], rows[0]
            weight = weights.piece(name, *rows)
        matrix = matrix_of(name, weight)
        with target.lock:
            if target.handle is None:
                target.handle = self._reserve(name, self._form(name, matrix, num_rows))
        status = self._functions.appl_weight_fill(target.handle, start, ctypes.byref(matrix))
        if status == _UNSUPPORTED:
            target.needs_offsets = True
        else:
            self._library.check(status, f"weight {name!r}")

    def _pack_with_offsets(self, weights: Mapping[str, CanonicalWeight], target: _Target) -> None:
        """Packs a weight again with offsets, because the first rows did not need them but others do."""
        target.handle = None
        for _, rows in self._pieces(weights, target):
            assert rows is not None
            assert isinstance(weights, WeightPieces)
            matrix = matrix_of(target.name, weights.piece(target.name, *rows))
            if target.handle is None:
                form = self._form(target.name, matrix, weights.shape(target.name)[0])
                form.has_offset, form.zero_point = 1, 0
                target.handle = self._reserve(target.name, form)
            status = self._functions.appl_weight_fill(target.handle, rows[0], ctypes.byref(matrix))
            self._library.check(status, f"weight {target.name!r}")

    def _form(self, name: str, matrix: abi.Matrix, num_rows: int) -> abi.PackedForm:
        form = abi.PackedForm()
        status = self._functions.appl_weight_form_of(ctypes.byref(matrix), num_rows, ctypes.byref(form))
        self._library.check(status, f"weight {name!r}")
        return form

    def _reserve(self, name: str, form: abi.PackedForm) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        with self._allocating:
            status = self._functions.appl_weight_reserve(self._pool, ctypes.byref(form), ctypes.byref(handle))
            self._library.check(status, f"weight {name!r}")
            self.created.append(handle)
        return handle


def as_floats(name: str, weight: CanonicalWeight) -> np.ndarray:
    """Returns a dense weight as f32 [N, K]. Raises BindError for a quantized one."""
    _check(name, weight)
    if weight.layout is Layout.BF16:
        values = (weight.data.astype(np.uint32) << 16).view(np.float32)
    elif weight.layout in (Layout.F32, Layout.F16):
        values = weight.data.astype(np.float32)
    else:
        raise BindError(f"weight {name!r} is {weight.layout}; norms, biases and tables must be dense")
    return np.ascontiguousarray(values).reshape(weight.out_features, weight.in_features)


def _first_done(pending: "set[Future[None]]") -> "set[Future[None]]":
    """Waits for the first to finish and returns those that still run. Raises the exception of a finished one."""
    done, running = wait(pending, return_when=FIRST_COMPLETED)
    for each in done:
        each.result()
    return running


def matrix_of(name: str, weight: CanonicalWeight) -> abi.Matrix:
    """Returns a record that keeps its arrays alive. Raises BindError."""
    _check(name, weight)
    data = np.ascontiguousarray(weight.data)
    scale = None if weight.scale is None else np.ascontiguousarray(weight.scale)
    kind = None if scale is None else scale.dtype
    offset = None if weight.offset is None else np.ascontiguousarray(weight.offset, kind)
    factors = (None if each is None else np.ascontiguousarray(each) for each in (weight.sub_scale, weight.sub_offset))
    arrays = (data, scale, offset, *factors)
    matrix = abi.Matrix(
        layout=abi.LAYOUTS[weight.layout],
        rows=weight.out_features,
        columns=weight.in_features,
        group_size=weight.group_size or 0,
        scale_type=0 if kind is None else abi.SCALE_TYPES[kind.itemsize],
        sub_group_size=weight.sub_group_size or 0,
        **{
            name: None if array is None else array.ctypes.data
            for name, array in zip(("data", "scale", "offset", "sub_scale", "sub_offset"), arrays, strict=True)
        },
    )
    matrix.arrays = arrays
    return matrix


def _check(name: str, weight: CanonicalWeight) -> None:
    """Checks that the arrays have the sizes of the record, which the native library cannot see. Raises BindError."""
    n, k = weight.out_features, weight.in_features
    if weight.data.dtype != _DATA_TYPES[weight.layout]:
        raise BindError(f"weight {name!r} is {weight.layout} but its data is {weight.data.dtype}")
    elements = n * k // 2 if weight.layout in PAIRED_LAYOUTS else n * k
    if weight.data.size != elements:
        raise BindError(f"weight {name!r} is [{n}, {k}] but has {weight.data.size} elements, not {elements}")
    if weight.layout not in INTEGER_LAYOUTS + CODED_LAYOUTS:
        return
    if weight.scale is None or not weight.group_size or k % weight.group_size:
        raise BindError(f"weight {name!r} is {weight.layout} without scales of whole groups")
    for array in (weight.scale, weight.offset):
        if array is None:
            continue
        kinds = (np.float16, np.float32, np.uint8) if weight.layout in BOOK_LAYOUTS else (np.float16, np.float32)
        if array.size != n * (k // weight.group_size) or array.dtype not in kinds:
            raise BindError(f"weight {name!r} has scales or offsets of the wrong size or type")
    for array in (weight.sub_scale, weight.sub_offset):
        if array is None:
            continue
        if not weight.sub_group_size or array.size * weight.sub_group_size != n * k or array.dtype != np.int8:
            raise BindError(f"weight {name!r} has factors of sub-groups of the wrong size or type")
