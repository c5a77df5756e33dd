"""The sampler of logits that torch has made: the native one where a native library is installed."""

import contextlib
import ctypes
import weakref
from collections.abc import Callable

from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.cpu.pools import create_pool
from appliance.kernels.cpu.sampler import NativeSampler
from appliance.kernels.errors import KernelSetError
from appliance.kernels.logits import HostLogits
from appliance.kernels.reference.sampler import ReferenceSampler
from appliance.kernels.sampling import SampledBatch, SamplingBatch

Sample = Callable[[HostLogits, SamplingBatch], SampledBatch]


class HostSampler:
    """Samples on the host. Both samplers give the same tokens; the native one is faster."""

    def __init__(self, num_threads: int) -> None:
        """num_threads: of the native sampler."""
        with contextlib.ExitStack() as resources:
            library = _best_library()
            self.sample: Sample
            if library is None:
                self.sample = ReferenceSampler().sample
            else:
                pool: ctypes.c_void_p = create_pool(library, resources, num_threads)
                self.sample = NativeSampler(library, pool).sample
            self._finalizer = weakref.finalize(self, resources.pop_all().close)

    def close(self) -> None:
        """Ends the sampler's threads."""
        self._finalizer()


def _best_library() -> Library | None:
    """Returns the highest level that is installed and that this processor runs; None if there is none."""
    for entry in reversed(KERNEL_SETS.values()):
        if entry.level is None:
            continue
        try:
            return load_level(entry.level)
        except KernelSetError:
            continue
    return None
