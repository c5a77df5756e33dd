"""The slots of adapters in the executable: written for the sequences that start, and emptied."""

from collections.abc import Iterable

from appliance.engine.adapters import AdapterStore
from appliance.kernels.interface import Adapters, Executable


class FilledSlots:
    """Writes adapters of the store into slots. A slot for which that failed is remembered with the reason."""

    def __init__(self, executable: Executable, store: AdapterStore | None) -> None:
        self._executable = executable
        self._store = store
        self._bad: dict[int, Exception] = {}  # slots without the adapter that should be there, and why

    def put(self, puts: Iterable[tuple[int, str]]) -> None:
        """Writes adapters, by digest, into slots that no row has. Sequences that take a slot for which this fails do
        not start: see `check`."""
        for slot, digest in puts:
            self._bad.pop(slot, None)
            try:
                assert self._store is not None, "there are slots"
                self._adapters.put_adapter(slot, self._store.maps(digest))
            except Exception as error:  # noqa: BLE001 - it concerns the rows that take this slot
                self._bad[slot] = error

    def drop(self, slots: Iterable[int]) -> None:
        """Empties slots that no row has."""
        for slot in slots:
            self._bad.pop(slot, None)
            self._adapters.drop_adapter(slot)

    def check(self, slot: int) -> None:
        """Raises what was raised when the slot was written."""
        if slot in self._bad:
            raise self._bad[slot]

    @property
    def _adapters(self) -> Adapters:
        assert isinstance(self._executable, Adapters), "it was bound with places"
        return self._executable
