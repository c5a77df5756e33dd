"""Tensors that take long to have whole, and are read piece by piece."""

import threading
from collections.abc import Callable
from typing import Final

from appliance.checkpoint.reader import Bytes

_KEPT: Final = 2


class LastRead:
    """Keeps the tensors that were read last, so that they are not made again for each piece. Several threads may read:
    one tensor is made at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, Bytes] = {}
        self._lock = threading.Lock()

    def read(self, name: str, make: Callable[[], Bytes]) -> Bytes:
        """Returns what is kept under a name, or what `make` returns. Raises what that raises."""
        with self._lock:
            if name not in self._kept:
                while len(self._kept) >= _KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[name] = make()
            return self._kept[name]

    def forget(self, name: str) -> None:
        with self._lock:
            self._kept.pop(name, None)
