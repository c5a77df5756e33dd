"""Writes the leaves of exact grammars as Lark: literals, and numbers within bounds."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.literals import quoted, spelled
from appliance.engine.grammar.numbers import check_digits, decimals_from, decimals_to, integers_from, integers_to


def literal_options(literals: list[Any], gap: str, terminal: Callable[[str], str]) -> list[str]:
    """Returns one alternative for each literal. `terminal` defines a Lark terminal and returns its name."""
    scalars = [quoted(spelled(each)) for each in literals if not isinstance(each, list | dict)]
    others = [_sequence(each, gap) for each in literals if isinstance(each, list | dict)]
    return [terminal(" | ".join(scalars)), *others] if scalars else others


def has_type(literal: Any, types: Any) -> bool:
    """Returns whether the literal has one of a schema's `types`; None allows all."""
    if types is None:
        return True
    kinds = {str: "string", dict: "object", list: "array", type(None): "null", bool: "boolean"}
    kind = kinds.get(type(literal), "number")
    return kind in types or (kind == "number" and "integer" in types and literal == int(literal))


def is_same(literal: Any, other: Any) -> bool:
    """Compares as JSON Schema does: 1 equals 1.0 but not true."""
    return bool(literal == other) and isinstance(literal, bool) == isinstance(other, bool)


def number_terminal(kind: str, schema: dict[str, Any]) -> str:
    """Returns the terminal of numbers within a schema's bounds. kind: "number" or "integer". Raises GrammarError if
    there are none."""
    if "multipleOf" in schema:
        raise GrammarError("it cannot be kept to exactly together with multipleOf")
    low, is_above = _tighter(schema.get("minimum"), schema.get("exclusiveMinimum"), max)
    high, is_below = _tighter(schema.get("maximum"), schema.get("exclusiveMaximum"), min)
    if kind == "integer":
        sides = _integers(low, high, is_above, is_below)
    else:
        _check_order(low, high, is_above or is_below)
        sides = [] if low is None else [decimals_from(low, is_exclusive=is_above)]
        sides += [] if high is None else [decimals_to(high, is_exclusive=is_below)]
    return " & ".join(f"/{side}/" for side in sides)


def _sequence(literal: Any, gap: str) -> str:
    """Writes a literal part by part, with white space allowed between the parts."""
    if isinstance(literal, list):
        inner, (first, last) = [_sequence(each, gap) for each in literal], "[]"
    elif isinstance(literal, dict):
        first, last = "{}"
        inner = [f'{quoted(spelled(key))} {gap} ":" {gap} {_sequence(each, gap)}' for key, each in literal.items()]
    else:
        return quoted(spelled(literal))
    return f'"{first}" {gap} ' + f' {gap} "," {gap} '.join(inner) + f' {gap} "{last}"'


def _tighter(
    bound: Any, exclusive: Any, choose: Callable[[Fraction, Fraction], Fraction]
) -> tuple[Fraction | None, bool]:
    """Returns the tighter of two bounds on one side, and whether it is the exclusive one."""
    first, second = (None if each is None else _fraction(each) for each in (bound, exclusive))
    if first is None or second is None:
        return (first, False) if second is None else (second, True)
    return choose(first, second), first == second or choose(first, second) == second


def _fraction(number: float) -> Fraction:
    """Returns the number exactly as written. Raises GrammarError if it has too many digits."""
    exact = Fraction(number) if isinstance(number, int) else Fraction(repr(number))
    check_digits(exact)
    return exact


def _integers(low: Fraction | None, high: Fraction | None, is_above: bool, is_below: bool) -> list[str]:
    least = None if low is None else math.floor(low) + 1 if is_above else math.ceil(low)
    most = None if high is None else math.ceil(high) - 1 if is_below else math.floor(high)
    _check_order(least, most, False)
    sides = [] if least is None else [integers_from(least)]
    return sides if most is None else [*sides, integers_to(most)]


def _check_order(low: Fraction | int | None, high: Fraction | int | None, is_open: bool) -> None:
    if low is not None and high is not None and (low > high or (low == high and is_open)):
        raise GrammarError("no number is within the bounds")
