"""Binds the threads of a pool to CPUs, and takes their memory of NUMA nodes."""

import contextlib
import ctypes
import os

from appliance.base.log import fields, logger
from appliance.kernels.cpu.library import Library
from appliance.kernels.errors import BindError
from appliance.kernels.execution import Placement

_log = logger("kernels")


def place_caller(library: Library, resources: contextlib.ExitStack, placement: Placement) -> None:
    """Binds the calling thread, and the threads and memory that come of it, until `resources` are closed. Raises
    BindError if it may not run on the CPUs."""
    if not placement.cpus:
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        cpus = ", ".join(map(str, placement.cpus))
        hint = "hardware.cpu_omp_threads_bind names CPUs that this process may use"
        raise BindError(f"threads cannot be bound to CPU {cpus}: {error.strerror}", hint=hint) from error
    resources.callback(os.sched_setaffinity, 0, before)
    if placement.nodes:
        _prefer(library, placement.nodes)
        resources.callback(_prefer, library, ())


def bind_workers(library: Library, pool: ctypes.c_void_p, placement: Placement) -> None:
    """Binds each thread of a pool to a CPU of its own, if there is one for each. Raises BindError.

    The caller stays bound to all of them: threads that it starts for other work would all be on its one CPU.
    """
    if len(placement.cpus) < 2 or len(placement.cpus) != placement.num_threads:
        return
    cpus = (ctypes.c_int32 * len(placement.cpus))(*placement.cpus)
    library.check(library.functions.appl_pool_bind(pool, cpus, len(cpus)), "the threads")
    os.sched_setaffinity(0, placement.cpus)


def _prefer(library: Library, nodes: tuple[int, ...]) -> None:
    """Some containers forbid it. Threads that are bound take memory of their node anyway where they touch it first."""
    if library.functions.appl_prefer_nodes((ctypes.c_int32 * len(nodes))(*nodes), len(nodes)) != 0:
        hint = "give the container CAP_SYS_NICE"
        _log.warning("%s", library.last_error(), extra=fields(nodes=list(nodes), hint=hint))
