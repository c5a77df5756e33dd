"""Tells which literals and bounds the back-end's JSON grammars keep exactly, and spells the others.

The back-end holds numbers in 64-bit floating point and writes strings without \\u escapes: it would write a different
integer beyond 2^53, and a text without its control characters.
"""

import re
from fractions import Fraction
from typing import Any

import msgspec

MAX_EXACT = 2**53  # integers up to here are exact in floating point, and so are their neighbours
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_UNSAID = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # the others have short escapes: \b \t \n \f \r
_MOST_DECIMALS = 20  # of a bound: the back-end's expressions nest that deep


def is_kept(literal: Any) -> bool:
    """Returns whether the back-end writes exactly this value. It always writes object keys exactly."""
    if isinstance(literal, str):
        return _UNSAID.search(literal) is None
    if isinstance(literal, int | float):  # a boolean too
        return abs(literal) <= MAX_EXACT
    if isinstance(literal, dict):
        return all(is_kept(each) for each in literal.values())
    return all(is_kept(each) for each in literal) if isinstance(literal, list) else True


def is_kept_bound(bound: Any) -> bool:
    """Returns whether the back-end enforces exactly this bound."""
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return True  # it is not a bound: the metaschema check refuses it
    if abs(bound) > MAX_EXACT:
        return False
    return isinstance(bound, int) or (10**_MOST_DECIMALS * Fraction(repr(bound))).denominator == 1


def spelled(literal: Any) -> str:
    """Returns the JSON text of a scalar."""
    return msgspec.json.encode(literal).decode().replace("\x7f", "\\u007f")


def quoted(text: str) -> str:
    """Returns the text as a Lark string."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
