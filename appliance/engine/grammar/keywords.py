"""The rules for single keywords of JSON Schema; a refusal has the path of the keyword."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.literals import is_kept

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # that the back-end enforces
UNENFORCED = frozenset(
    (
        "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties",
        "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "if", "not", "$dynamicRef",
        "$recursiveRef",
    )
)  # fmt: skip
NEUTRAL: Mapping[str, tuple[Any, ...]] = {"uniqueItems": (False,), "nullable": (False,)}
LEAST = frozenset(("minLength", "minItems", "minProperties"))
MOST = frozenset(("maxLength", "maxItems", "maxProperties"))
MAX_COUNT = 2**31 - 1  # characters, items or properties: no answer has more
MAX_DIVISOR = 100_000  # of multipleOf, written without its point: the back-end has a state for each remainder

_BOUNDED_FORMATS = re.compile(r"u?int(8|16|32|64)")
_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # of a pattern; an escape holds no class
_CODE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|[xu]\{([0-9A-Fa-f]+)\}|U([0-9A-Fa-f]{8}))")
_LETTERS = {r"\a": "\a", r"\v": "\v"}

Rule = Callable[[dict[str, Any], str], None]


def kind_of(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )


def _check_format(schema: dict[str, Any], path: str) -> None:
    name, types = schema["format"], schema.get("type")
    kinds = types if isinstance(types, list) else [types]
    if not isinstance(name, str):
        raise GrammarError(f"it must be text, not {kind_of(name)}", path)
    if (types is None or "string" in kinds) and name not in FORMATS:
        allowed = ", ".join(sorted(FORMATS))
        raise GrammarError(f"the format {name[:60]!r} is not enforced by the back-end; enforced are {allowed}", path)
    if ("integer" in kinds or "number" in kinds) and _BOUNDED_FORMATS.fullmatch(name):
        raise GrammarError(f"the format {name!r} is not enforced; state minimum and maximum", path)


def _check_bound(schema: dict[str, Any], path: str) -> None:
    if isinstance(schema[path.rpartition(".")[2]], bool):
        raise GrammarError("a boolean here is of draft 4; write the bound itself", path)


def _check_items(schema: dict[str, Any], path: str) -> None:
    if isinstance(schema["items"], list):
        raise GrammarError("a list here is of older drafts; write prefixItems", path)


def _check_nullable(schema: dict[str, Any], path: str) -> None:
    if schema["nullable"]:
        raise GrammarError('it is no keyword of JSON Schema; write type: [..., "null"]', path)


def _refuse_options(schema: dict[str, Any], path: str) -> None:
    raise GrammarError("options of the back-end are set by structured_outputs and by the server", path)


def _check_divisor(schema: dict[str, Any], path: str) -> None:
    divisor = schema["multipleOf"]
    if isinstance(divisor, bool) or not isinstance(divisor, int | float) or divisor <= 0:
        raise GrammarError("it must be a number above 0", path)
    if digits_of(divisor) > MAX_DIVISOR:
        raise GrammarError(f"it may be {MAX_DIVISOR} at most, not counting its point", path)


def _check_pattern(schema: dict[str, Any], path: str) -> None:
    if isinstance(schema["pattern"], str):
        check_pattern(schema["pattern"], path)


def check_pattern(pattern: str, path: str) -> None:
    """Raises GrammarError for a control character without a short escape: the back-end would skip it silently."""
    found = [part for part in _CLASSES.findall(pattern) if part.startswith("[") and not part.startswith("[^")]
    outside = _CLASSES.sub(lambda part: "[]" if part[0].startswith("[") else part[0], pattern)
    alone = [part for part in (_characters(part[1:-1]) for part in found) if "-" not in part]
    if not is_kept(_characters(outside)) or any(all(not is_kept(each) for each in part) for part in alone):
        raise GrammarError("a control character in it cannot be said", path)


def _characters(part: str) -> str:
    """Replaces the escapes of single characters in a part of a pattern by the characters."""
    named = re.sub(r"\\[av]", lambda letter: _LETTERS[letter[0]], part)
    return _CODE.sub(lambda code: _character(int(next(filter(None, code.groups())), 16)), named)


def _character(code: int) -> str:
    return chr(code) if code <= 0x7F else "x"  # the back-end can write every character beyond ASCII


def digits_of(number: float) -> Fraction:
    """Returns the number times the power of ten that makes it an integer."""
    exact = Fraction(number) if isinstance(number, int) else Fraction(repr(number))
    while exact.denominator > 1:
        exact *= 10
    return exact


RULES: dict[str, Rule] = {
    "format": _check_format,
    "exclusiveMinimum": _check_bound,
    "exclusiveMaximum": _check_bound,
    "items": _check_items,
    "multipleOf": _check_divisor,
    "nullable": _check_nullable,
    "pattern": _check_pattern,
    "x-guidance": _refuse_options,
}
SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "properties": (dict, "an object"),
    "patternProperties": (dict, "an object"),
    "$defs": (dict, "an object"),
    "definitions": (dict, "an object"),
    "required": (list, "a list"),
    "enum": (list, "a list"),
    "anyOf": (list, "a list"),
    "oneOf": (list, "a list"),
    "allOf": (list, "a list"),
    "prefixItems": (list, "a list"),
    "pattern": (str, "text"),
    "type": ((str, list), "text or a list"),
}
