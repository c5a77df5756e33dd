"""Finds where the last tokens of a row stand before, by chains of the places of each short gram (as LZ77 does)."""

from array import array
from collections.abc import Iterator, Sequence

MOST_TRIED = 32  # places, latest first: older ones of a gram that is so common are not looked at
NOWHERE = -1


class TokenChains:
    """The places of each gram of `gram` tokens in one growing sequence. A place is the index behind the gram."""

    __slots__ = ("_gram", "_latest", "_previous", "_tokens")

    def __init__(self, tokens: Sequence[int], gram: int) -> None:
        self._tokens = tokens
        self._gram = gram
        self._latest: dict[tuple[int, ...], int] = {}
        self._previous = array("i", [NOWHERE] * gram)  # of place p: the place before it of the same gram

    def places(self) -> Iterator[int]:
        """Yields the places before its end at which the sequence's last gram stands, latest first."""
        tokens, gram, latest, previous = self._tokens, self._gram, self._latest, self._previous
        end = len(tokens)
        if end < gram:
            return
        for place in range(len(previous), end):  # the end itself is no place yet, as nothing follows it
            key = tuple(tokens[place - gram : place])
            previous.append(latest.get(key, NOWHERE))
            latest[key] = place
        found = latest.get(tuple(tokens[end - gram : end]), NOWHERE)
        for _ in range(MOST_TRIED):
            if found == NOWHERE:
                return
            yield found
            found = previous[found]


def continuation(tokens: Sequence[int], place: int, most: int) -> list[int]:
    """Returns the `most` tokens from `place` on. Where the sequence ends before, what it repeats goes on."""
    following = list(tokens[place : place + most])
    period = len(following)
    while len(following) < most:
        following.append(following[-period])
    return following


def match_length(tokens: Sequence[int], place: int, text: Sequence[int], least: int, most: int) -> int:
    """Returns how many tokens before `place` in `text` equal the last ones of `tokens`: at least `least` do, and more
    than `most` are not counted."""
    end = len(tokens)
    limit = min(most, place, end)
    length = least
    while length < limit and text[place - length - 1] == tokens[end - length - 1]:
        length += 1
    return length
