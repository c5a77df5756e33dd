"""Measures a machine's limits for kernels: bytes read per second, and operations per second by layout."""

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from appliance.hardware.facts import MeasuredFacts
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.cpu.pools import create_pool
from appliance.kernels.rates import kernel_rates

READ_BUFFER_BYTES = 1 << 30  # larger than any last-level cache of the supported machines
PROBE_SECONDS = 0.5
GLANCE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Measurements:
    """Bytes per second, and operations per second (a multiply and an add are two), of all `num_threads` together."""

    num_threads: int
    read_bandwidth: float
    f32_peak: float
    bf16_peak: float
    int8_peak: float
    kernel_rates: Mapping[str, float]  # see kernels.rates


def measure(
    level: str, num_threads: int, seconds: float = PROBE_SECONDS, buffer_bytes: int = READ_BUFFER_BYTES
) -> Measurements:
    """Probes for about 8 * `seconds`, and keeps the best passes. Raises KernelSetError if the level cannot run."""
    library = load_level(level)
    with thread_pool(library, num_threads) as pool:
        return Measurements(
            num_threads=num_threads,
            read_bandwidth=read_bandwidth(library, pool, seconds, buffer_bytes),
            f32_peak=peak(library, pool, "f32", seconds),
            bf16_peak=peak(library, pool, "bf16", seconds),
            int8_peak=peak(library, pool, "int8", seconds),
            kernel_rates=kernel_rates(library, num_threads, seconds / 2),
        )


def glance(
    level: str, num_threads: int, seconds: float = GLANCE_SECONDS, buffer_bytes: int = READ_BUFFER_BYTES
) -> MeasuredFacts:
    """Measures the current performance of the machine: the mean of all passes (`measure` keeps the best).

    On a shared machine the two differ by the share that other tenants use. It takes about four times `seconds`, plus
    the time to fill the buffer. Raises KernelSetError if the level cannot run.
    """
    library = load_level(level)
    with thread_pool(library, num_threads) as pool:
        return MeasuredFacts(
            read_bandwidth=_read_rates(library, pool, seconds, buffer_bytes).mean,
            f32_peak=_product_rates(library, pool, "f32", seconds).mean,
            bf16_peak=_product_rates(library, pool, "bf16", seconds).mean,
            int8_peak=_product_rates(library, pool, "int8", seconds).mean,
        )


@contextlib.contextmanager
def thread_pool(library: Library, num_threads: int) -> Iterator[ctypes.c_void_p]:
    with contextlib.ExitStack() as resources:
        yield create_pool(library, resources, num_threads)


def read_bandwidth(
    library: Library, pool: ctypes.c_void_p, seconds: float = PROBE_SECONDS, buffer_bytes: int = READ_BUFFER_BYTES
) -> float:
    """Returns the bytes per second that all threads read from memory: the best pass over a large buffer."""
    return _read_rates(library, pool, seconds, buffer_bytes).best


def peak(library: Library, pool: ctypes.c_void_p, layout: str, seconds: float = PROBE_SECONDS) -> float:
    """Returns the operations per second, in registers, of the multiply-adds that a Linear of `layout` uses: f32, bf16
    and int8 if the level has such instructions, else the type to which it widens them."""
    return _product_rates(library, pool, layout, seconds).best


def _read_rates(library: Library, pool: ctypes.c_void_p, seconds: float, buffer_bytes: int) -> abi.Rates:
    rates = abi.Rates()
    status = library.functions.appl_measure_read(pool, buffer_bytes, seconds, ctypes.byref(rates))
    library.check(status, "measuring read bandwidth")
    return rates


def _product_rates(library: Library, pool: ctypes.c_void_p, layout: str, seconds: float) -> abi.Rates:
    rates = abi.Rates()
    status = library.functions.appl_measure_peak(pool, abi.LAYOUTS[layout], seconds, ctypes.byref(rates))
    library.check(status, f"measuring the {layout} peak")
    return rates
