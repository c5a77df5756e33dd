"""Canonical weights in native memory: matrices packed, vectors and tables as f32 arrays."""

import contextlib
import ctypes
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.errors import BindError
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.operators import StepProgram

_DATA_TYPES = {
    Layout.F32: np.dtype(np.float32),
    Layout.F16: np.dtype(np.float16),
    Layout.BF16: np.dtype(np.uint16),
    Layout.INT8: np.dtype(np.int8),
    Layout.INT4: np.dtype(np.uint8),
}


_NUM_AHEAD = 2  # translating is numpy on one core; two keep up with packing on two


class BoundWeights:
    def __init__(
        self, library: Library, pool: ctypes.c_void_p, resources: contextlib.ExitStack, matrices: frozenset[str]
    ) -> None:
        self._library = library
        self._pool = pool
        self._resources = resources
        self._matrix_names = matrices
        self._matrices: dict[str, ctypes.c_void_p] = {}
        self._vectors: dict[str, np.ndarray] = {}

    def read(self, weights: Mapping[str, CanonicalWeight], program: StepProgram) -> None:
        """Reads each weight that the program names, once, in the mapping's order. Raises BindError."""
        wanted = self._matrix_names | _vector_names(program)
        missing = sorted(wanted.difference(weights))  # its names alone: a look-up would translate
        if missing:
            raise BindError(f"the program names weights that are not there: {', '.join(missing)}")
        for name, weight in _ahead(weights, [name for name in weights if name in wanted]):
            _check(name, weight)
            if name in self._matrix_names:
                self._matrices[name] = self._pack(name, weight)
            else:
                self._vectors[name] = as_floats(name, weight)

    def matrix(self, name: str) -> int:
        return self._matrices[name].value or 0

    def vector(self, name: str, size: int) -> int:
        vector = self._vectors[name]
        if vector.size != size:
            raise BindError(f"weight {name!r} has {vector.size} elements, the program needs {size}")
        return int(vector.ctypes.data)

    def table(self, name: str, columns: int) -> np.ndarray:
        table = self._vectors[name]
        if table.shape[1] != columns:
            raise BindError(f"table {name!r} has {table.shape[1]} columns, the program needs {columns}")
        return table

    @property
    def size_bytes(self) -> int:
        size_of = self._library.functions.appl_weight_bytes
        return sum(int(size_of(m)) for m in self._matrices.values()) + sum(v.nbytes for v in self._vectors.values())

    def _pack(self, name: str, weight: CanonicalWeight) -> ctypes.c_void_p:
        data = np.ascontiguousarray(weight.data)
        scale = None if weight.scale is None else np.ascontiguousarray(weight.scale)
        offset = (
            None
            if weight.offset is None
            else np.ascontiguousarray(weight.offset, None if scale is None else scale.dtype)
        )
        matrix = abi.Matrix(
            layout=abi.LAYOUTS[weight.layout],
            rows=weight.out_features,
            columns=weight.in_features,
            group_size=weight.group_size or 0,
            scales_are_f32=scale is not None and scale.dtype == np.float32,
            data=data.ctypes.data,
            scale=None if scale is None else scale.ctypes.data,
            offset=None if offset is None else offset.ctypes.data,
        )
        packed = ctypes.c_void_p()
        functions = self._library.functions
        self._library.check(
            functions.appl_weight_pack(self._pool, ctypes.byref(matrix), ctypes.byref(packed)), f"weight {name!r}"
        )
        self._resources.callback(functions.appl_weight_destroy, packed)
        return packed


def _ahead(weights: Mapping[str, CanonicalWeight], names: Sequence[str]) -> Iterator[tuple[str, CanonicalWeight]]:
    """The weights of `names` in order. While one is packed, threads translate the next ones."""
    with ThreadPoolExecutor(_NUM_AHEAD, thread_name_prefix="translate") as translators:
        pending = deque(translators.submit(weights.__getitem__, name) for name in names[:_NUM_AHEAD])
        for index, name in enumerate(names):
            weight = pending.popleft().result()
            following = names[index + _NUM_AHEAD : index + _NUM_AHEAD + 1]
            pending.extend(translators.submit(weights.__getitem__, other) for other in following)
            yield name, weight


def as_floats(name: str, weight: CanonicalWeight) -> np.ndarray:
    """A dense weight as f32 [N, K]. Raises BindError for a quantized one."""
    if weight.layout is Layout.BF16:
        values = (weight.data.astype(np.uint32) << 16).view(np.float32)
    elif weight.layout in (Layout.F32, Layout.F16):
        values = weight.data.astype(np.float32)
    else:
        raise BindError(f"weight {name!r} is {weight.layout}; norms, biases and tables must be dense")
    return np.ascontiguousarray(values).reshape(weight.out_features, weight.in_features)


def _check(name: str, weight: CanonicalWeight) -> None:
    """What the native library cannot see: that the arrays have the sizes that the record says."""
    n, k = weight.out_features, weight.in_features
    if weight.data.dtype != _DATA_TYPES[weight.layout]:
        raise BindError(f"weight {name!r} is {weight.layout} but its data is {weight.data.dtype}")
    elements = n * k // 2 if weight.layout is Layout.INT4 else n * k
    if weight.data.size != elements:
        raise BindError(f"weight {name!r} is [{n}, {k}] but has {weight.data.size} elements, not {elements}")
    if weight.layout not in (Layout.INT8, Layout.INT4):
        return
    if weight.scale is None or not weight.group_size or k % weight.group_size:
        raise BindError(f"weight {name!r} is {weight.layout} without scales of whole groups")
    for array in (weight.scale, weight.offset):
        if array is None:
            continue
        if array.size != n * (k // weight.group_size) or array.dtype not in (np.float16, np.float32):
            raise BindError(f"weight {name!r} has scales or offsets of the wrong size or type")


def _vector_names(program: StepProgram) -> frozenset[str]:
    fields = ("weight", "bias", "table")
    names = (getattr(op, field, None) for op in program.operators for field in fields)
    return frozenset(name for name in names if isinstance(name, str))
