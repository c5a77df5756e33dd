"""Checks which parts of JSON Schema a constraint uses, before it is compiled; a refusal has the place.

The dialect is 2020-12. Keywords that do not constrain an answer (title, default, examples ...) and unknown ones are
ignored, as the standard says. Keywords that constrain the answer but that the back-end does not enforce are refused,
and so are values that it would change silently (see exact). The back-end refuses the rest that it cannot intersect or
prove.
"""

import math
from collections.abc import Iterator
from typing import Any

from appliance.engine.grammar.closing import closable, has_merged_parts
from appliance.engine.grammar.exact import places_to_keep
from appliance.engine.grammar.exact_rules import exact_grammar
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.keywords import (
    LEAST,
    MAX_COUNT,
    MAX_DIVISOR,
    MOST,
    NEUTRAL,
    RULES,
    SHAPES,
    UNENFORCED,
    check_pattern,
    digits_of,
    kind_of,
)
from appliance.engine.grammar.parts import definition, member, path_of, steps_to, subschemas
from appliance.engine.grammar.rewriting import rewritten

MAX_DEPTH = 64  # of nested values
MAX_VALUES = 20_000  # of a schema document: members and items at all levels


def checked_schema(schema: Any, *, additional_properties: bool = True) -> dict[str, Any] | bool:
    """Returns the schema ready for the back-end: without neutral keywords and, if `additional_properties` is false,
    with objects closed unless they say otherwise (see closing). Raises GrammarError with the path of the refusal."""
    _check_size(schema)
    closed = frozenset() if additional_properties else closable(schema)
    _Checker(schema, closed).check_all()
    ready = rewritten(schema, closed)
    assert isinstance(ready, dict | bool)
    if places_to_keep(ready):
        exact_grammar(ready, {})  # raises GrammarError if it cannot be exact
    return ready


def _check_size(schema: Any) -> None:
    """Counts without recursion, so that no depth can hurt."""
    level, count, depth = [schema], 1, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"the schema is nested more than {MAX_DEPTH} deep")
        below: list[Any] = []
        for value in level:
            below.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        count += len(below)
        if count > MAX_VALUES:
            raise GrammarError(f"the schema has more than {MAX_VALUES} values")
        level = below


class _Checker:
    """Checks each reachable schema once. References go through a queue, as they may be deep and circular."""

    def __init__(self, root: Any, closed: frozenset[int]) -> None:
        self._root = root
        self._closed = closed
        self._seen: set[int] = set()
        self._referred: list[tuple[Any, str]] = [(root, "")]
        self._divisors: dict[float, str] = {}

    def check_all(self) -> None:
        while self._referred:
            self._check(*self._referred.pop())
        if len(self._divisors) > 1 and has_merged_parts(self._root):
            self._check_divisors()

    def _check(self, schema: Any, path: str) -> None:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise GrammarError(f"a schema is an object or a boolean, not {kind_of(schema)}", path)
        if id(schema) in self._seen:
            return
        self._seen.add(id(schema))
        for keyword, rule in RULES.items():
            if keyword in schema:
                rule(schema, member(path, keyword))
        for keyword in UNENFORCED:
            if keyword in schema and schema[keyword] not in NEUTRAL.get(keyword, ()):
                raise GrammarError("the keyword is not enforced by the back-end", member(path, keyword))
        self._check_shapes(schema, path)
        self._check_name(schema, path)
        if "multipleOf" in schema:
            self._divisors.setdefault(schema["multipleOf"], member(path, "multipleOf"))
        for step, child in subschemas(schema):
            self._check(child, path + step)
        self._follow(schema, path)

    def _check_shapes(self, schema: dict[str, Any], path: str) -> None:
        for keyword, (kind, words) in SHAPES.items():
            if keyword in schema and not isinstance(schema[keyword], kind):
                raise GrammarError(f"it must be {words}, not {kind_of(schema[keyword])}", member(path, keyword))
        for keyword in LEAST | MOST:
            value = schema.get(keyword, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
                raise GrammarError("it must be an integer of at least 0", member(path, keyword))
            if keyword in LEAST and value > MAX_COUNT:
                raise GrammarError(f"it may be {MAX_COUNT} at most", member(path, keyword))
        for pattern in schema.get("patternProperties", ()):
            check_pattern(pattern, member(member(path, "patternProperties"), pattern))
        self._check_min_properties(schema, path)

    def _check_min_properties(self, schema: dict[str, Any], path: str) -> None:
        """Refuses minProperties over free keys: the grammar may repeat a key, and a reader then sees only one."""
        most = max(1, len(schema.get("required", ())) + 1)
        is_closed = schema.get("additionalProperties", id(schema) not in self._closed) is False
        if schema.get("minProperties", 0) > most and not is_closed:
            reason = "more than one free key cannot be counted, for they may be equal; name them in required"
            raise GrammarError(reason, f"{path}.minProperties")

    def _check_name(self, schema: dict[str, Any], path: str) -> None:
        if path and "$id" in schema and any("$ref" in each for each in _inside(schema)):
            reason = "references below a name of its own would be from there; only those from the root are followed"
            raise GrammarError(reason, member(path, "$id"))

    def _check_divisors(self) -> None:
        """Bounds the least common multiple of all divisors: in merged schemas a value may need several."""
        numerators = [digits_of(divisor).numerator for divisor in self._divisors]
        if math.lcm(*numerators) > MAX_DIVISOR:
            reason = f"the least common multiple of all may be {MAX_DIVISOR} at most where schemas are merged"
            raise GrammarError(reason, [*self._divisors.values()][-1])

    def _follow(self, schema: dict[str, Any], path: str) -> None:
        reference = schema.get("$ref")
        if reference is None:
            return
        where = f"{path}.$ref"
        if not isinstance(reference, str):
            raise GrammarError(f"it must be text, not {kind_of(reference)}", where)
        if reference and not reference.startswith("#"):
            raise GrammarError("only references inside the schema are followed", where)
        if reference not in ("#", "") and not reference.startswith("#/"):
            raise GrammarError("anchors are not followed; write a pointer such as #/$defs/name", where)
        steps = steps_to(self._root, reference or "#")
        if steps is None:
            raise GrammarError(f"{reference[:200]!r} points at nothing", where)
        self._referred.append((definition(self._root, reference or "#"), path_of(steps)))


def _inside(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for _, child in subschemas(schema):
        if isinstance(child, dict):
            yield from _inside(child)
