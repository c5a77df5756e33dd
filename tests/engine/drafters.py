"""Drafters as an operator would write them."""

import time
from collections.abc import Iterator, Sequence


def repeat(tokens: Sequence[int], most: int) -> list[int]:
    """Says the last token again and again."""
    return [tokens[-1]] * most


def other(tokens: Sequence[int], most: int) -> list[int]:
    return [tokens[0]] * most


def fails(tokens: Sequence[int], most: int) -> list[int]:
    raise LookupError("no idea")


def exits(tokens: Sequence[int], most: int) -> list[int]:
    raise SystemExit(1)


def hangs(tokens: Sequence[int], most: int) -> list[int]:
    while True:
        time.sleep(0.01)


def says_words(tokens: Sequence[int], most: int) -> list[str]:
    return ["word"] * most


def says_nothing(tokens: Sequence[int], most: int) -> None:
    return None


def says_other_ids(tokens: Sequence[int], most: int) -> list[int]:
    return [-1, 10**9]


def never_ends(tokens: Sequence[int], most: int) -> Iterator[int]:
    while True:
        yield -1


NOT_A_DRAFTER = 3
