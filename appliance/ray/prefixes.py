"""Which replica has seen the beginning of a prompt. Pure: no Ray, no clock."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from appliance.service.replicas.routing import Candidate, choose

PIECE_BYTES = 128  # of the text of a request: a few blocks of a cache
_PIECE_TOKENS = PIECE_BYTES // 4  # about
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

    def choose(self, pieces: Sequence[bytes], loads: Mapping[ReplicaT, int]) -> ReplicaT | None:
        """Returns the replica where a prompt costs least, by the rule of replicas on one machine (routing.choose): what
        it has seen of the prompt, against the open requests that it has. None where `loads` is empty."""
        if not loads:
            return None
        seen = {
            replica: (number + 1) * _PIECE_TOKENS
            for number, piece in enumerate(pieces)
            if (replica := self._seen.get(piece)) is not None
        }
        names = list(loads)
        number = choose([Candidate(worth=seen.get(each, 0), num_sequences=loads[each]) for each in names])
        return names[number]
