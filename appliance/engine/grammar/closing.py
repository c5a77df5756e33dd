"""Finds the objects of a schema to close when additional properties are off.

An object is closed if it lists `properties`, does not say what else it may have, and stays satisfiable. The parts of an
object described in several places (allOf, a $ref or anyOf beside properties) stay open: each would forbid what the
others require. So every answer to the closed schema is also valid for the schema as it was given.
"""

from collections.abc import Callable, Iterator
from typing import Any

from appliance.engine.grammar.parts import definition, subschemas

_BRANCHES = ("allOf", "anyOf", "oneOf")
_SAID = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "$ref", *_BRANCHES)
_OF_OBJECTS = ("properties", "patternProperties", "required", "minProperties", "propertyNames")


def closable(root: Any) -> frozenset[int]:
    """Returns the ids of the objects in `root` to close. Malformed schemas are skipped: the check refuses them."""
    schemas = list(_reached(root, [root], _whole))
    parts = {id(part) for part in _reached(root, [part for each in schemas for part in _parts(root, each)], _same)}
    return frozenset(id(each) for each in schemas if id(each) not in parts and _may_close(each))


def has_merged_parts(root: Any) -> bool:
    """Returns whether some value is described in several places."""
    return any(True for schema in _reached(root, [root], _whole) for _ in _parts(root, schema))


def _reached(root: Any, level: list[Any], below: Callable[[Any, dict[str, Any]], Iterator[Any]]) -> Iterator[Any]:
    """Yields each schema object of `level` and below once. Definitions are visited only through references."""
    seen: set[int] = set()
    while level:
        schema = level.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        level.extend(below(root, schema))


def _whole(root: Any, schema: dict[str, Any]) -> Iterator[Any]:
    yield definition(root, schema.get("$ref"))
    for _, child in subschemas(schema):
        yield child


def _same(root: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas that describe the same value as `schema`."""
    yield definition(root, schema.get("$ref"))
    for keyword in _BRANCHES:
        branches = schema.get(keyword)
        yield from branches if isinstance(branches, list) else ()


def _parts(root: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas that describe one object together, if there are several."""
    several = schema.get("allOf")
    num_places = any(word in schema for word in _OF_OBJECTS) + sum(word in schema for word in ("$ref", *_BRANCHES))
    if num_places > 1 or (isinstance(several, list) and len(several) > 1):
        yield from _same(root, schema)


def _may_close(schema: dict[str, Any]) -> bool:
    properties, required, least = (schema.get(word) for word in ("properties", "required", "minProperties"))
    if not isinstance(properties, dict) or any(word in schema for word in _SAID):
        return False
    names = required if isinstance(required, list) else []
    has_room = not isinstance(least, int) or least <= len(properties)
    return has_room and all(isinstance(name, str) and name in properties for name in names)
