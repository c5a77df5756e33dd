"""Which literals and bounds the back-end's JSON grammars keep as they are, and how the others are spelled.

The back-end holds numbers in 64-bit floating point and writes strings without \\u escapes: it would say another integer
beyond 2^53, and a text without its control characters.
"""

import re
from fractions import Fraction
from typing import Any

import msgspec

MAX_EXACT = 2**53  # integers up to here are exact in floating point, and so are their neighbours
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_UNSAID = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # the others have an escape of their own: \b \t \n \f \r
_MOST_DECIMALS = 20  # of a bound: the back-end's expressions nest as deep


def is_kept(literal: Any) -> bool:
    """Whether the back-end says this very value. Keys of objects are always said as they are."""
    if isinstance(literal, str):
        return _UNSAID.search(literal) is None
    if isinstance(literal, int | float):  # a boolean too
        return abs(literal) <= MAX_EXACT
    if isinstance(literal, dict):
        return all(is_kept(each) for each in literal.values())
    return all(is_kept(each) for each in literal) if isinstance(literal, list) else True


def is_kept_bound(bound: Any) -> bool:
    """Whether the back-end holds answers to this very bound."""
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return True  # no bound: the check of the schema's form refuses it
    if abs(bound) > MAX_EXACT:
        return False
    return isinstance(bound, int) or (10**_MOST_DECIMALS * Fraction(repr(bound))).denominator == 1


def spelled(literal: Any) -> str:
    """The JSON text of a scalar."""
    return msgspec.json.encode(literal).decode().replace("\x7f", "\\u007f")


def quoted(text: str) -> str:
    """A Lark string."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
