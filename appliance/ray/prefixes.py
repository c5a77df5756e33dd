"""Which replica has seen the beginning of a prompt. Pure: no Ray, no clock."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

PIECE_BYTES = 128  # of the text of a request; several blocks of a cache, so that few pieces tell
MAX_PIECES = 256
MAX_ENTRIES = 100_000
_TEXTS = ("messages", "system", "prompt", "input", "inputs")

ReplicaT = TypeVar("ReplicaT", bound=Hashable)


class _Asked(msgspec.Struct):
    """What of a body decides which keys and values it needs."""

    model: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    inputs: msgspec.Raw = msgspec.Raw(b"")


_DECODER = msgspec.json.Decoder(_Asked)


def pieces_of(body: bytes) -> tuple[bytes, ...]:
    """Returns a digest of each whole beginning of the prompt in a JSON body, the shortest first.

    Two bodies whose prompts begin alike have the first digests in common. None for what is no prompt, and for one
    shorter than a piece.
    """
    try:
        asked = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()  # the replica that gets it says what is wrong with it
    text = b"".join(bytes(getattr(asked, name)) for name in _TEXTS)
    digest = hashlib.blake2b(bytes(asked.model), digest_size=8)
    found = []
    for at in range(0, min(len(text) // PIECE_BYTES, MAX_PIECES) * PIECE_BYTES, PIECE_BYTES):
        digest.update(text[at : at + PIECE_BYTES])
        found.append(digest.digest())
    return tuple(found)


class SeenPrefixes(Generic[ReplicaT]):
    """Remembers which replica was given a prefix last; the oldest prefixes are forgotten."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._seen: OrderedDict[bytes, ReplicaT] = OrderedDict()

    def note(self, pieces: Sequence[bytes], replica: ReplicaT) -> None:
        for piece in pieces:
            self._seen[piece] = replica
            self._seen.move_to_end(piece)
        while len(self._seen) > self._max_entries:
            self._seen.popitem(last=False)

    def choose(self, pieces: Sequence[bytes], loads: Mapping[ReplicaT, int], max_imbalance: int) -> ReplicaT | None:
        """Returns the replica with the longest known prefix, or the one with the least load where none is known or the
        known one has more than max_imbalance requests more than the least. None where `loads` is empty."""
        least = min(loads, key=lambda each: loads[each], default=None)
        if least is None:
            return None
        for piece in reversed(pieces):
            replica = self._seen.get(piece)
            if replica is not None and replica in loads:
                return replica if loads[replica] <= loads[least] + max_imbalance else least
        return least
