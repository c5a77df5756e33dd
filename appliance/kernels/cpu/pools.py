"""Pools of native threads, with the memory that is taken from them."""

import contextlib
import ctypes

from appliance.kernels.cpu.library import Library


def create_pool(library: Library, resources: contextlib.ExitStack, num_threads: int) -> ctypes.c_void_p:
    """Creates a pool, which ends with `resources`. Raises BindError."""
    pool = ctypes.c_void_p()
    library.check(library.functions.appl_pool_create(num_threads, ctypes.byref(pool)), "the thread pool")
    resources.callback(library.functions.appl_pool_destroy, pool)
    return pool
