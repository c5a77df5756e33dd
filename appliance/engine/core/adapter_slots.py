"""The adapters that are served, and which of them are in the slots of the executable."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from appliance.engine.adapter_messages import AdapterStats
from appliance.engine.adapter_stacks import StackPart, digests_of, stack_digest
from appliance.engine.messages import ErrorKind
from appliance.engine.refusal import Refusal
from appliance.program.adapters import num_adapter_slots, stack_problem


class ServedAdapter(NamedTuple):
    """Names an adapter, or a stack of them, by its content. `scale` multiplies all that it adds to the model."""

    sha256: str
    scale: float = 1.0
    name: str = ""  # by which requests find it; figures are counted by it
    rank: int = 0  # the highest of its maps

    @property
    def namespace(self) -> str:
        """Names what the keys and values of a sequence depend on besides its tokens."""
        return self.sha256 if self.scale == 1.0 else f"{self.sha256}*{self.scale!r}"


class AdapterSlots:
    """Slots by the content of the adapters in them. An adapter that a running sequence has keeps its slot. Of the
    others one gives way that is not pinned and that no waiting sequence has, the one that was used longest ago first.

    Sequences that run have at most max_loras adapters. There is one slot more, so that a new adapter can be checked
    while all of these are in use.
    """

    def __init__(self, max_loras: int, max_rank: int = 0) -> None:
        self.max_loras, self.max_rank = max_loras, max_rank
        self.num_slots = num_adapter_slots(max_loras)
        self.served: Mapping[str, ServedAdapter] = {}  # by name
        self.pinned: Collection[str] = frozenset()  # digests
        self.num_puts = 0
        self._free = list(range(self.num_slots - 1, -1, -1))
        self._slots: dict[str, int] = {}  # by digest, those used longest ago first
        self._users: Counter[str] = Counter()  # running sequences by digest
        self._waiting: Counter[str] = Counter()  # waiting sequences by digest
        self._checked: str | None = None  # the digest of the adapter that a check has in a slot
        self._puts: list[tuple[int, str]] = []  # not yet reported to the runner
        self._running_names: Counter[str] = Counter()
        self._waiting_names: Counter[str] = Counter()

    def serve(self, served: Mapping[str, ServedAdapter], pinned: Collection[str] = frozenset()) -> None:
        """Serves these adapters from now on. Open requests keep the adapters that they have."""
        self.served, self.pinned = served, frozenset(pinned)

    def find(
        self, name: str | None, scale: float | None = None, also: Sequence[tuple[str, float | None]] = ()
    ) -> ServedAdapter | None:
        """Returns the adapter of a name, with another scale if one is given; None for none, and for the scale 0. also:
        further names and scales, with which it makes a stack. Raises Refusal if one is not served, or if a slot is too
        small for the stack."""
        if name is None:
            return None
        chosen = [found for each in ((name, scale), *also) if (found := self._find(*each)).scale]
        if len(chosen) < 2:
            return chosen[0] if chosen else None
        # The front has asked the same, and an adapter may have got another rank since.
        if problem := stack_problem([each.rank for each in chosen], self.max_rank):
            raise Refusal(ErrorKind.INVALID, "lora", problem)
        parts = sorted(StackPart(each.sha256, each.scale) for each in chosen)
        return ServedAdapter(stack_digest(parts), name=chosen[0].name)

    def _find(self, name: str, scale: float | None) -> ServedAdapter:
        found = self.served.get(name)
        if found is None:
            raise Refusal(ErrorKind.NOT_FOUND, "model", f"the adapter {name!r} is not served")
        return found if scale is None else found._replace(scale=scale)

    def can_take(self, adapter: ServedAdapter | None, *, is_check: bool = False) -> bool:
        """Returns whether a sequence with this adapter may start to run."""
        if adapter is None or is_check or adapter.sha256 in self._users:
            return True
        others = self._users.keys() | self.pinned
        return len(others - {adapter.sha256}) < self.max_loras

    def take(self, adapter: ServedAdapter | None, *, is_check: bool = False) -> int:
        """Returns the slot of a sequence that starts to run, or -1 for none; the caller has asked `can_take`. At most
        one check runs at a time."""
        if adapter is None:
            return -1
        digest = adapter.sha256
        slot = self._slots.pop(digest, None)
        if slot is None:
            slot = self._free.pop() if self._free else self._evict()
            self._puts.append((slot, digest))
            self.num_puts += 1
        self._slots[digest] = slot
        if is_check:
            self._checked = digest
        else:
            self._users[digest] += 1
            self._running_names[adapter.name] += 1
        return slot

    def release(self, adapter: ServedAdapter | None, *, is_check: bool = False) -> None:
        """Notes that a sequence with this adapter runs no longer."""
        if is_check:
            self._checked = None
        elif adapter is not None:
            _count(self._users, adapter.sha256, -1)
            _count(self._running_names, adapter.name, -1)

    def count_waiting(self, adapter: ServedAdapter | None, change: int) -> None:
        """Notes that a sequence with this adapter waits, or waits no longer."""
        if adapter is not None:
            _count(self._waiting, adapter.sha256, change)
            _count(self._waiting_names, adapter.name, change)

    def take_puts(self) -> tuple[tuple[int, str], ...]:
        """Returns the slots to be written and the digests of their adapters, since the last call."""
        puts, self._puts = tuple(self._puts), []
        return puts

    def needed(self) -> set[str]:
        """Returns the digests that are served, or that open sequences have."""
        checked = set() if self._checked is None else {self._checked}
        used = {part for digest in (*self._users, *self._waiting) for part in digests_of(digest)}
        return {each.sha256 for each in self.served.values()} | used | checked

    def drop_unneeded(self) -> list[int]:
        """Empties the slots of adapters that are needed no longer, and returns these slots. Called between steps."""
        assert not self._puts, "what a step was to put has been reported"
        needed = self.needed()
        dropped = [self._slots.pop(digest) for digest in list(self._slots) if not digests_of(digest) <= needed]
        self._free += dropped
        return dropped

    def kept(self) -> set[str]:
        """Returns the digests that are in slots, of which some may be served no longer."""
        return set(self._slots)

    def stats(self) -> AdapterStats:
        running, waiting = (tuple(sorted(filter(None, each))) for each in (self._running_names, self._waiting_names))
        return AdapterStats(running=running, waiting=waiting, num_writes=self.num_puts)

    def check_invariants(self, users: Counter[str], waiting: Counter[str]) -> None:
        """Raises AssertionError when the slots contradict the digests of running and waiting sequences. For tests."""
        assert users == self._users, "users differ"
        assert waiting == self._waiting, "waiting sequences differ"
        assert len(users) <= self.max_loras, "more adapters run than may"
        assert all(digest in self._slots for digest in users), "a running sequence has no slot"
        numbers = [*self._slots.values(), *self._free]
        assert sorted(numbers) == list(range(self.num_slots)), "a slot leaked, or has two adapters"

    def _evict(self) -> int:
        idle = (digest for digest in self._slots if digest not in self._users and digest != self._checked)
        digest = min(idle, key=lambda each: (each in self.pinned, each in self._waiting))
        return self._slots.pop(digest)


def _count(counter: Counter[str], key: str, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]
