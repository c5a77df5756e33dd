"""Writes regular expressions of numbers within bounds that the back-end's floating point cannot hold.

Each bound is one expression for one side; a number in a range matches both. Numbers have no exponent, integers have no
leading zeros. Groups nest as deep as a bound has digits before its trailing zeros.
"""

from fractions import Fraction

from appliance.engine.grammar.interface import GrammarError

MAX_DIGITS = 310  # of a bound before its point; the largest 64-bit floating-point number has as many
_MAX_NESTED = 150  # groups: libraries of regular expressions allow some 250
_MAX_DECIMALS = 40  # digits of a bound after its point
_ANY_INTEGER = "(0|[1-9][0-9]*)"
_ANY_FRACTION = r"(\.[0-9]+)?"
_ABOVE_ZERO = "[0-9]*[1-9][0-9]*"  # digits after a point that are not all 0


def integers_from(least: int) -> str:
    """Matches integers of at least `least`."""
    if least <= 0:
        negative = f"|-{_up_to(-least)}" if least < 0 else ""
        return f"({_ANY_INTEGER}{negative})"
    return _from(least)


def integers_to(most: int) -> str:
    """Matches integers of at most `most`."""
    return f"(-[1-9][0-9]*|{_up_to(most)})" if most >= 0 else f"-{_from(-most)}"


def decimals_from(bound: Fraction, *, is_exclusive: bool) -> str:
    """Matches numbers of at least `bound`, or above it if exclusive. Raises GrammarError for too many decimals."""
    if bound > 0 or (bound == 0 and is_exclusive):
        return _decimals_from(bound, is_exclusive)
    if bound == 0:
        return f"{_ANY_INTEGER}{_ANY_FRACTION}"
    return f"({_ANY_INTEGER}{_ANY_FRACTION}|-{_decimals_to(-bound, is_exclusive)})"


def decimals_to(bound: Fraction, *, is_exclusive: bool) -> str:
    """Matches numbers of at most `bound`, or below it if exclusive. Raises GrammarError for too many decimals."""
    negative = f"-{_decimals_from(Fraction(0), is_exclusive=True)}"
    if bound < 0:
        return f"-{_decimals_from(-bound, is_exclusive)}"
    if bound == 0 and is_exclusive:
        return negative
    return f"({negative}|{_decimals_to(bound, is_exclusive)})"


def _from(least: int) -> str:
    """Matches the digits of integers of at least `least`, which is above 0."""
    digits = str(least)
    return f"({_digits_from(digits)}|[1-9][0-9]{{{len(digits)},}})"


def _up_to(most: int) -> str:
    """Matches the digits of integers from 0 to `most`."""
    digits = str(most)
    if len(digits) == 1:
        return f"[0-{digits}]"
    shorter = f"0|[1-9][0-9]{{0,{len(digits) - 2}}}"
    first = int(digits[0])
    smaller = f"|[1-{first - 1}][0-9]{{{len(digits) - 1}}}" if first > 1 else ""
    return f"({shorter}{smaller}|{first}{_digits_to(digits[1:])})"


def _digits_from(digits: str) -> str:
    """Matches as many digits, of at least the same value."""
    kept = digits.rstrip("0")
    pattern = f"[0-9]{{{len(digits) - len(kept)}}}"
    for place in range(len(kept) - 1, -1, -1):
        digit, rest = int(kept[place]), len(digits) - 1 - place
        larger = f"|[{digit + 1}-9][0-9]{{{rest}}}" if digit < 9 else ""
        pattern = f"({digit}{pattern}{larger})" if larger else f"{digit}{pattern}"
    return pattern


def _digits_to(digits: str) -> str:
    """Matches as many digits, of at most the same value."""
    kept = digits.rstrip("9")
    pattern = f"[0-9]{{{len(digits) - len(kept)}}}"
    for place in range(len(kept) - 1, -1, -1):
        digit, rest = int(kept[place]), len(digits) - 1 - place
        smaller = f"|[0-{digit - 1}][0-9]{{{rest}}}" if digit > 0 else ""
        pattern = f"({digit}{pattern}{smaller})" if smaller else f"{digit}{pattern}"
    return pattern


def _decimals_from(bound: Fraction, is_exclusive: bool) -> str:
    """Matches numbers without a sign, of at least `bound`, which is not below 0."""
    whole, decimals = _parts(bound)
    same = f"{whole}{_fraction_from(decimals, is_exclusive)}"
    return f"({same}|{_from(whole + 1)}{_ANY_FRACTION})"


def _decimals_to(bound: Fraction, is_exclusive: bool) -> str:
    """Matches numbers without a sign, of at most `bound`, which is at least 0 (above 0 if exclusive)."""
    whole, decimals = _parts(bound)
    options = [f"{_up_to(whole - 1)}{_ANY_FRACTION}"] if whole > 0 else []
    if decimals or not is_exclusive:
        options.append(f"{whole}{_fraction_to(decimals, is_exclusive)}")
    return f"({'|'.join(options)})"


def _fraction_from(decimals: str, is_exclusive: bool) -> str:
    if not decimals:
        return rf"\.{_ABOVE_ZERO}" if is_exclusive else _ANY_FRACTION
    pattern = _ABOVE_ZERO if is_exclusive else "[0-9]*"
    for digit in map(int, reversed(decimals)):
        larger = f"|[{digit + 1}-9][0-9]*" if digit < 9 else ""
        pattern = f"({digit}{pattern}{larger})"
    return rf"\.{pattern}"


def _fraction_to(decimals: str, is_exclusive: bool) -> str:
    """Matches the fraction after the bound's whole part; it may be missing."""
    if not decimals:
        return r"(\.0+)?"
    first, *earlier = map(int, reversed(decimals))  # the last digit, which is not 0
    pattern = f"[0-{first - 1}][0-9]*" if is_exclusive else f"({first}0*|[0-{first - 1}][0-9]*)"
    for digit in earlier:
        smaller = f"|[0-{digit - 1}][0-9]*" if digit > 0 else ""
        pattern = f"({digit}({pattern})?{smaller})"
    return rf"(\.{pattern})?"


def check_digits(bound: Fraction) -> None:
    """Raises GrammarError for a bound of too many digits."""
    whole = abs(int(bound))
    if whole >= 10**MAX_DIGITS:
        raise GrammarError(f"a bound may have {MAX_DIGITS} digits before its point")
    if len(str(whole).rstrip("0")) > _MAX_NESTED:
        raise GrammarError(f"a bound may have {_MAX_NESTED} digits that are not trailing zeros")


def _parts(bound: Fraction) -> tuple[int, str]:
    """Returns the whole part, and the digits after the point. Raises GrammarError for too many of them."""
    whole = int(bound)
    rest, decimals = bound - whole, ""
    while rest:
        if len(decimals) == _MAX_DECIMALS:
            raise GrammarError(f"a bound may have {_MAX_DECIMALS} digits behind its point")
        rest *= 10
        decimals += str(int(rest))
        rest -= int(rest)
    return whole, decimals
