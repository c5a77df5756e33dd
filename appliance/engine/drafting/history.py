"""Finished answers in which drafts are looked up: bounded, the oldest leave first, and kept apart by cache salt."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BYTES_PER_TOKEN = 28  # a token and the link of its place in a segment's arrays, and the place's share of the table
_OFFSET_BITS = 32  # of a place: the number of the segment, then the index in it
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Segment:
    """The tokens of one answer. previous[i]: the place before index i, in any segment, of a gram with the same hash."""

    tokens: "array[int]"
    previous: "array[int]"
    salt: str | None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The tokens of a finished answer, and an index at which a gram that was looked for ends."""

    tokens: Sequence[int]
    index: int


class History:
    """The last answers: at most `most_answers`, in at most `size_bytes`. A table of hashes leads to the latest places
    of each gram of `gram` tokens; which of them are right is told by the tokens themselves."""

    def __init__(self, gram: int, most_answers: int, size_bytes: int) -> None:
        self._gram = gram
        self._most_answers = most_answers
        self._most_tokens = size_bytes // BYTES_PER_TOKEN
        bits = max(8, self._most_tokens.bit_length())
        self._mask = (1 << bits) - 1
        self._latest = array("q", [_NOWHERE]) * (1 << bits) if most_answers else array("q")
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        self._next = 0
        self.num_tokens = 0

    def add(self, tokens: Sequence[int], salt: str | None) -> None:
        """Adds an answer as the latest one; the oldest ones make room. One that could not fit is left out."""
        if len(tokens) <= self._gram or len(tokens) > self._most_tokens or not self._most_answers:
            return
        while self._segments and (
            len(self._segments) >= self._most_answers or self.num_tokens + len(tokens) > self._most_tokens
        ):
            _, oldest = self._segments.popitem(last=False)
            self.num_tokens -= len(oldest.tokens)
        number, gram, latest = self._next, self._gram, self._latest
        base = number << _OFFSET_BITS
        previous = array("q", [_NOWHERE]) * len(tokens)
        for index in range(gram, len(tokens)):
            at = self._slot(tokens[index - gram : index], salt)
            previous[index] = latest[at]
            latest[at] = base | index
        self._segments[number] = _Segment(array("i", tokens), previous, salt)
        self._next += 1
        self.num_tokens += len(tokens)

    def places(self, gram: Sequence[int], salt: str | None, most: int) -> Iterator[Occurrence]:
        """Yields where the gram stands in answers of this salt, latest first; at most `most` places are tried."""
        if not self._segments:
            return
        found, wanted = self._latest[self._slot(gram, salt)], array("i", gram)
        for _ in range(most):
            segment = None if found == _NOWHERE else self._segments.get(found >> _OFFSET_BITS)
            if segment is None:
                return  # the chain goes back in time, so all that follow are gone, too
            index = found & _OFFSET_MASK
            if segment.salt == salt and segment.tokens[index - self._gram : index] == wanted:
                yield Occurrence(segment.tokens, index)
            found = segment.previous[index]

    def _slot(self, gram: Sequence[int], salt: str | None) -> int:
        return hash((salt, *gram)) & self._mask
