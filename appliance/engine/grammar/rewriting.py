"""Rewrites a checked schema into the form that the back-end gets."""

from collections.abc import Mapping
from typing import Any

from appliance.engine.grammar.keywords import LEAST, MAX_COUNT, MOST, NEUTRAL
from appliance.engine.grammar.parts import pointer_to, steps_to

# The back-end's grammars of formats do not check these: year 0, 29 February, leap seconds, and the length of names.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = f"({_YEAR}-(0[13-9]|1[0-2])-[0-9]{{2}}|{_YEAR}-02-([01][0-9]|2[0-8])|{_LEAP_YEAR}-02-29)"
_TIME = "[0-9]{2}:[0-9]{2}:[0-5][0-9]"
_TIGHTER: Mapping[str, tuple[str, Any]] = {
    "date": ("pattern", f"^{_DATE}$"),
    "time": ("pattern", f"^{_TIME}"),
    "date-time": ("pattern", f"^{_DATE}[Tt]{_TIME}"),
    "hostname": ("maxLength", 253),
}
# Names of documents and anchors are dropped: references are followed only as pointers from the root.
_NAMES = frozenset(("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))


def rewritten(root: Any, closed: frozenset[int]) -> Any:
    """Copies the schema without neutral keywords, with exact formats, uniformly spelled references, and the objects of
    the `closed` ids closed. Literals (enum, const) and unknown keywords stay as they are. Definitions without a
    reference to them may have any form."""
    return _Rewriting(root, closed).copy(root)


class _Rewriting:
    def __init__(self, root: Any, closed: frozenset[int]) -> None:
        self._root = root
        self._closed = closed

    def copy(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        copy = {key: self._value(key, value) for key, value in schema.items() if not _says_nothing(key, value)}
        _tighten(copy)
        if id(schema) in self._closed:
            copy["additionalProperties"] = False
        return copy

    def _value(self, key: str, value: Any) -> Any:
        if key in _MAPS and isinstance(value, dict):
            return {name: self.copy(each) for name, each in value.items()}
        if key == "$ref" and (steps := steps_to(self._root, value)) is not None:
            return pointer_to(steps)
        if key in _LISTS and isinstance(value, list):
            return [self.copy(each) for each in value]
        if key in ("items", "additionalProperties"):
            return self.copy(value)
        return int(value) if key in LEAST | MOST and isinstance(value, float) else value


def _says_nothing(key: str, value: Any) -> bool:
    """Returns whether a keyword has no effect: a bound above every possible count, a name, or a neutral value."""
    is_no_bound = key in MOST and isinstance(value, int | float) and value > MAX_COUNT
    return is_no_bound or key in _NAMES or (key in NEUTRAL and value in NEUTRAL[key])


def _tighten(copy: dict[str, Any]) -> None:
    name = copy.get("format")
    if isinstance(name, str) and name in _TIGHTER:
        keyword, bound = _TIGHTER[name]
        if keyword in copy and isinstance(copy.get("allOf", []), list):
            copy["allOf"] = [*copy.get("allOf", ()), {keyword: bound}]
        else:
            copy[keyword] = bound
