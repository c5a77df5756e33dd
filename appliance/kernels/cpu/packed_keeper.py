"""Writes packed weights to disk while the engine already serves."""

import os
import threading
import time
from collections.abc import Sequence

from appliance.base.log import fields, logger
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.packed_file import PackedBytes, packed_size, write_packed
from appliance.kernels.packed_cache import NotKeptError, PackedCache

_log = logger("kernels")
_NICENESS = 10  # lower priority than requests


class PackedKeeper(threading.Thread):
    """Writes once, in the background. A failure is logged and costs only time at the next start."""

    def __init__(self, cache: PackedCache, key: str, weights: Sequence[PackedBytes], library: Library) -> None:
        super().__init__(name="keep-weights", daemon=True)
        self._cache = cache
        self._key = key
        self._weights = weights
        self._library = library
        self._cancelled = threading.Event()

    def run(self) -> None:
        path = self._cache.path(self._key)
        started = time.monotonic()
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # only of this thread
            size = packed_size(self._key, self._weights)
            with self._cache.writing(path, size) as descriptor:
                write_packed(descriptor, self._key, self._weights, self._library, self._may_proceed)
        except (NotKeptError, OSError) as error:
            _log.info("packed weights are not kept", extra=fields(file=path.name, reason=str(error)))
        else:
            seconds = round(time.monotonic() - started, 3)
            _log.info("packed weights are kept", extra=fields(file=path.name, bytes=size, seconds=seconds))

    def cancel(self) -> None:
        """Cancels the writing, and returns when the weights are no longer read; then their memory may be freed."""
        self._cancelled.set()
        self.join()

    def _may_proceed(self) -> bool:
        return not self._cancelled.is_set()
