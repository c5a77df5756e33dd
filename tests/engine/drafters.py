"""Drafters as an operator would write them."""

from collections.abc import Sequence


def repeat(tokens: Sequence[int], most: int) -> list[int]:
    """Says the last token again and again."""
    return [tokens[-1]] * most


def other(tokens: Sequence[int], most: int) -> list[int]:
    return [tokens[0]] * most


def fails(tokens: Sequence[int], most: int) -> list[int]:
    raise LookupError("no idea")


NOT_A_DRAFTER = 3
