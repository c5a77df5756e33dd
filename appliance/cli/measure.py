"""Figures of this machine by the native library's own probes: bytes read, and operations of each kind, a second."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from appliance.hardware import MeasuredFacts
from appliance.kernels.cpu.abi import LAYOUTS
from appliance.kernels.cpu.library import Library, load_level

_BUFFER_BYTES: Final = 1 << 30  # beyond any cache that one package has on common machines
_SECONDS: Final = 2.0  # of each probe


def measure(
    level: str, num_threads: int, seconds: float = _SECONDS, buffer_bytes: int = _BUFFER_BYTES
) -> MeasuredFacts:
    """With the library of one CPU level and a pool of threads. Raises KernelSetError or BindError."""
    library = load_level(level)
    with _pool(library, num_threads) as pool:
        read = _probe(library, "appl_measure_read", pool, ctypes.c_uint64(buffer_bytes), seconds)
        f32, bf16, int8 = (
            _probe(library, "appl_measure_peak", pool, ctypes.c_int32(LAYOUTS[layout]), seconds)
            for layout in ("f32", "bf16", "int8")
        )
    return MeasuredFacts(read_bandwidth=read, f32_peak=f32, bf16_peak=bf16, int8_peak=int8)


def _probe(library: Library, function: str, pool: ctypes.c_void_p, what: object, seconds: float) -> float:
    figure = ctypes.c_double()
    status = getattr(library.functions, function)(pool, what, ctypes.c_double(seconds), ctypes.byref(figure))
    library.check(status, function)
    return figure.value


@contextmanager
def _pool(library: Library, num_threads: int) -> Iterator[ctypes.c_void_p]:
    pool = ctypes.c_void_p()
    library.check(
        library.functions.appl_pool_create(ctypes.c_int32(num_threads), ctypes.byref(pool)), "appl_pool_create"
    )
    try:
        yield pool
    finally:
        library.functions.appl_pool_destroy(pool)
