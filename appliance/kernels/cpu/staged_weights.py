"""Weights that are packed beside the bound ones, to be copied into their places between two steps."""

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.packed_file import form_fields
from appliance.kernels.cpu.packing import Packer
from appliance.kernels.errors import BindError
from appliance.kernels.layout import CanonicalWeight


class PackedBeside:
    """Packed weights in memory of their own, which `close` gives back."""

    def __init__(self, library: Library, matrices: frozenset[str]) -> None:
        """matrices: the names of those among the weights that are packed."""
        self._library = library
        self._resources = contextlib.ExitStack()
        pool = ctypes.c_void_p()
        library.check(library.functions.appl_pool_create(1, ctypes.byref(pool)), "memory for new weights")
        self._resources.callback(library.functions.appl_pool_destroy, pool)  # with the memory of its weights
        self._packer = Packer(library, pool, matrices)

    @property
    def matrices(self) -> Mapping[str, ctypes.c_void_p]:
        return self._packer.matrices

    @property
    def vectors(self) -> Mapping[str, np.ndarray]:
        return self._packer.vectors

    def pack(self, weights: Mapping[str, CanonicalWeight], names: Sequence[str], num_threads: int) -> None:
        """Packs those of `names`. Raises BindError."""
        try:
            self._packer.pack(weights, names, num_threads)
        finally:
            for handle in self._packer.created:
                self._resources.callback(self._library.functions.appl_weight_destroy, handle)

    def close(self) -> None:
        self._packer.vectors = {}
        self._resources.close()


class StagedPack:
    """What `PackedBeside` holds, and the function that puts it in place."""

    def __init__(self, packed: PackedBeside, put: Callable[[PackedBeside], None]) -> None:
        self._packed, self._put = packed, put

    def commit(self) -> None:
        try:
            self._put(self._packed)
        finally:
            self._packed.close()

    def close(self) -> None:
        self._packed.close()


def copy_matrix(library: Library, name: str, old: ctypes.c_void_p, new: ctypes.c_void_p) -> None:
    """Copies a packed matrix over another one of the same form."""
    assert form_of(library, old) == form_of(library, new), f"{name} was checked when it was packed"
    functions = library.functions
    size = int(functions.appl_weight_bytes(old))
    ctypes.memmove(functions.appl_weight_panels(old), functions.appl_weight_panels(new), size)


def check_form(library: Library, name: str, old: ctypes.c_void_p, new: ctypes.c_void_p) -> None:
    """Raises BindError if a matrix is packed unlike the one that it is to replace."""
    if form_of(library, old) != form_of(library, new):
        hint = "start the deployment again with the new checkpoint"
        raise BindError(f"weight {name!r} has another packed form than the one that is served", hint=hint)


def form_of(library: Library, handle: ctypes.c_void_p) -> tuple[int, ...]:
    form = abi.PackedForm()
    library.functions.appl_weight_form(handle, ctypes.byref(form))
    return form_fields(form)
