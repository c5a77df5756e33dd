"""Finds the schemas that hold a literal or a bound which the back-end would change.

Only the schemas on the path to such a place become Lark rules (see exact_rules); all others stay JSON schemas within
the rules. On that path there may be objects, lists, alternatives and references. Anything else is refused, with the
place of the literal or bound.
"""

from collections.abc import Iterator
from typing import Any

from appliance.engine.grammar.literals import BOUNDS, is_kept, is_kept_bound
from appliance.engine.grammar.parts import definition, member, path_of, steps_to, subschemas


def places_to_keep(root: Any) -> dict[int, str]:
    """Returns, by schema id, the path of the literal or bound in that schema that the back-end would change."""
    return {id(schema): found for schema, path in _reached(root) if (found := _unkept(schema, path)) is not None}


def leading_to(root: Any, places: dict[int, str]) -> dict[int, str]:
    """Returns, by schema id, the path of one of these places that is reached from that schema."""
    found, parents = dict(places), _parents(root)
    level = list(found)
    while level:
        child = level.pop()
        for parent in parents.get(child, ()):
            if parent not in found:
                found[parent] = found[child]
                level.append(parent)
    return found


def _reached(root: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields each schema object once, with a path to it."""
    level: list[tuple[Any, str]] = [(root, "")]
    seen: set[int] = set()
    while level:
        schema, path = level.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema, path
        level += [(child, path + step) for step, child in subschemas(schema)]
        if (steps := steps_to(root, schema.get("$ref"))) is not None:
            level.append((definition(root, schema["$ref"]), path_of(steps)))


def _unkept(schema: dict[str, Any], path: str) -> str | None:
    if "const" in schema and not is_kept(schema["const"]):
        return f"{path}.const"
    listed = schema.get("enum")
    for place, each in enumerate(listed if isinstance(listed, list) else ()):
        if not is_kept(each):
            return f"{path}.enum[{place}]"
    types = schema.get("type", "number")
    if "number" in types or "integer" in types:
        return next((member(path, word) for word in BOUNDS if not is_kept_bound(schema.get(word))), None)
    return None


def _parents(root: Any) -> dict[int, list[int]]:
    """Returns, by schema id, the ids of the schemas that contain it or refer to it."""
    found: dict[int, list[int]] = {}
    for schema, _ in _reached(root):
        for child in (*(child for _, child in subschemas(schema)), definition(root, schema.get("$ref"))):
            found.setdefault(id(child), []).append(id(schema))
    return found
