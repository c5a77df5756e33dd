"""The adapters that are served, and which of them are in the slots of the executable."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from appliance.engine.messages import ErrorKind
from appliance.engine.refusal import Refusal


class ServedAdapter(NamedTuple):
    """Names an adapter by its content. `scale` multiplies all that it adds to the model."""

    sha256: str
    scale: float = 1.0

    @property
    def namespace(self) -> str:
        """Names what the keys and values of a sequence depend on besides its tokens."""
        return self.sha256 if self.scale == 1.0 else f"{self.sha256}*{self.scale!r}"


class AdapterSlots:
    """Slots by the content of the adapters in them. An adapter that a running sequence has keeps its slot; of the
    others the one that was used longest ago gives way first."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.served: Mapping[str, ServedAdapter] = {}  # by name
        self.num_puts = 0
        self._free = list(range(num_slots - 1, -1, -1))
        self._slots: dict[str, int] = {}  # by digest, those used longest ago first
        self._users: Counter[str] = Counter()  # running sequences by digest
        self._puts: list[tuple[int, str]] = []  # not yet reported to the runner

    def find(self, name: str | None) -> ServedAdapter | None:
        """Returns the adapter of a name; None for none. Raises Refusal if it is not served."""
        if name is None:
            return None
        found = self.served.get(name)
        if found is None:
            raise Refusal(ErrorKind.INVALID, "model", f"the adapter {name!r} is not served")
        return found

    def can_take(self, adapter: ServedAdapter | None) -> bool:
        """Returns whether a sequence with this adapter may start to run."""
        if adapter is None or adapter.sha256 in self._slots or self._free:
            return True
        return len(self._users) < self.num_slots

    def take(self, adapter: ServedAdapter | None) -> int:
        """Returns the slot of a sequence that starts to run, or -1 for none; the caller has asked `can_take`."""
        if adapter is None:
            return -1
        digest = adapter.sha256
        slot = self._slots.pop(digest, None)
        if slot is None:
            slot = self._free.pop() if self._free else self._evict()
            self._puts.append((slot, digest))
            self.num_puts += 1
        self._slots[digest] = slot
        self._users[digest] += 1
        return slot

    def release(self, adapter: ServedAdapter | None) -> None:
        """Notes that a sequence with this adapter runs no longer."""
        if adapter is None:
            return
        digest = adapter.sha256
        self._users[digest] -= 1
        if not self._users[digest]:
            del self._users[digest]

    def take_puts(self) -> tuple[tuple[int, str], ...]:
        """Returns the slots to be written and the digests of their adapters, since the last call."""
        puts, self._puts = tuple(self._puts), []
        return puts

    def kept(self) -> set[str]:
        """Returns the digests that are in slots, of which some may be served no longer."""
        return set(self._slots)

    def check_invariants(self, users: Counter[str]) -> None:
        """Raises AssertionError when the slots contradict the running sequences' digests. For tests only."""
        assert users == self._users, "users differ"
        assert all(digest in self._slots for digest in users), "a running sequence has no slot"
        numbers = [*self._slots.values(), *self._free]
        assert sorted(numbers) == list(range(self.num_slots)), "a slot leaked, or has two adapters"

    def _evict(self) -> int:
        digest = next(each for each in self._slots if each not in self._users)
        return self._slots.pop(digest)
