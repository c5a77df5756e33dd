"""JSON Schemas by system: each keyword over its values, then keywords nested in one another."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

Schema = dict[str, Any] | bool

PATTERNS = (
    "^[a-z]{2,4}$", "^\\d{3}-\\d{4}$", "ab", "^a|b$", "^(foo|bar)+$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$",
    "^\\w+@\\w+\\.com$", "^[^x]{3}$", "^.{1,3}$", "^$", "^[\\u00e0-\\u00ff]{2}$", "^(0|[1-9][0-9]*)$",
    "^#[0-9a-fA-F]{6}$", "^\\s\\S$", "a.c",
    "^\"\\\\$", "^v[0-9]+(\\.[0-9]+){0,2}$", "(red|green|blue)$", "^x{0,3}y?$", "^[\\[\\]{}]{2}$",
)  # fmt: skip
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
SCALARS: tuple[dict[str, Any], ...] = (
    {"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9},
    {"type": "string", "maxLength": 4},
    {"enum": ["a", "b", 3, None]}, {"const": "only"}, {"type": ["boolean", "null"]},
)  # fmt: skip


def generated() -> Iterator[tuple[str, Schema]]:
    """(name, schema), the same at each call."""
    for part in (_literals, _strings, _numbers, _arrays, _objects, _combined, _nested, _recursive):
        for number, schema in enumerate(part()):
            yield f"{part.__name__.strip('_')}-{number}", schema


def written() -> list[tuple[str, Schema]]:
    """Schemas as people write them."""
    found = msgspec.json.decode((Path(__file__).parent / "corpus.json").read_bytes(), type=dict[str, Any])
    return list(found.items())


def _literals() -> Iterator[Schema]:
    values: tuple[Any, ...] = (
        "a", "", "caf\u00e9 \U0001f600", 'quote " and \\', "line\nbreak", 0, -1, 2.5, 1e3, True, None, [], [1, "a"], {},
        {"a": {"b": [1, 2]}},
    )  # fmt: skip
    yield from ({"const": value} for value in values)
    yield from ({"enum": [value, "other"]} for value in values)
    yield {"enum": list(range(100))}
    yield {"enum": [f"value {number}" for number in range(50)]}


def _strings() -> Iterator[Schema]:
    for least, most in product((None, 0, 1, 5), (None, 0, 1, 8)):
        if least is not None and most is not None and least > most:
            continue
        yield _without_none({"type": "string", "minLength": least, "maxLength": most})
    yield from ({"type": "string", "pattern": pattern} for pattern in PATTERNS)
    yield from ({"type": "string", "pattern": pattern, "maxLength": 12} for pattern in PATTERNS)
    yield from ({"type": "string", "format": name} for name in FORMATS)
    yield from ({"type": ["string", "null"], "format": name} for name in FORMATS)


def _numbers() -> Iterator[Schema]:
    bounds = (None, -1000, -7, 0, 3, 100)
    for kind, low, high in product(("integer", "number"), bounds, bounds):
        if low is not None and high is not None and low > high:
            continue
        yield _without_none({"type": kind, "minimum": low, "maximum": high})
    for kind, low, high in product(("integer", "number"), (None, -5, 0, 17), (None, 19, 250)):
        yield _without_none({"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high})
    yield from ({"type": "integer", "multipleOf": of, "minimum": 0, "maximum": 200} for of in (1, 2, 3, 5, 7, 10, 64))
    yield from ({"type": "number", "multipleOf": of, "minimum": -4, "maximum": 4} for of in (0.5, 0.25, 2))
    yield {"type": "number", "minimum": -0.5, "maximum": 0.75}
    yield {"type": "number", "exclusiveMinimum": 1.25, "maximum": 1.5}


def _arrays() -> Iterator[Schema]:
    for items, (least, most) in product(SCALARS, ((None, None), (0, 2), (1, None), (3, 3))):
        yield _without_none({"type": "array", "items": items, "minItems": least, "maxItems": most})
    for rest in (True, False, {"type": "null"}):
        yield {"type": "array", "prefixItems": [SCALARS[0], SCALARS[2]], "items": rest, "maxItems": 4}
        yield {"type": "array", "prefixItems": [SCALARS[3]], "items": rest, "minItems": 1, "maxItems": 3}
    yield {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": SCALARS[2]}}}


def _objects() -> Iterator[Schema]:
    names = ("id", "name", "a b", "\u00fc")
    for count, required, rest in product((1, 2, 4), (0, 1, 4), (False, True, {"type": "integer"})):
        properties = {name: SCALARS[(place + count) % len(SCALARS)] for place, name in enumerate(names[:count])}
        yield {
            "type": "object",
            "properties": properties,
            "required": list(names[: min(required, count)]),
            "additionalProperties": rest,
        }
    for pattern, value in product(("^x", "^[a-z]{1,3}$", "_id$"), (SCALARS[2], SCALARS[3])):
        yield {"type": "object", "patternProperties": {pattern: value}, "additionalProperties": False}
        yield {"type": "object", "patternProperties": {pattern: value}, "properties": {"n": SCALARS[1]}}
    yield {"type": "object", "additionalProperties": SCALARS[0], "minProperties": 1, "maxProperties": 3}
    yield {"type": "object", "maxProperties": 0}
    yield {"type": "object", "required": ["free"]}
    yield {"required": ["a"], "properties": {"a": SCALARS[4]}}


def _combined() -> Iterator[Schema]:
    for first, second in product(SCALARS, SCALARS):
        if first is not second:
            yield {"anyOf": [first, second]}
    for kind in ("cat", "dog"):
        other = {"type": "object", "properties": {"kind": {"const": "bird"}, "wings": SCALARS[2]}, "required": ["kind"]}
        this = {
            "type": "object",
            "properties": {"kind": {"const": kind}, "name": SCALARS[3]},
            "required": ["kind", "name"],
        }
        yield {"oneOf": [this, other], "discriminator": {"propertyName": "kind"}}
        yield {"anyOf": [this, other, {"type": "null"}]}
    yield {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "maximum": 7}]}
    named = {"type": "object", "properties": {"name": SCALARS[3]}, "required": ["name"]}
    aged = {"type": "object", "properties": {"age": SCALARS[2]}, "required": ["age"]}
    yield {"allOf": [named, aged]}
    yield {"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^[ab]*$"}, {"maxLength": 6}]}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"multipleOf": 4}], "maximum": 40}
    yield {**named, "anyOf": [{"required": ["x"], "properties": {"x": SCALARS[0]}}, {"properties": {"y": SCALARS[1]}}]}
    yield {"type": ["object", "string", "number"], "properties": {"a": SCALARS[1]}, "maxLength": 2, "minimum": 8}


def _nested() -> Iterator[Schema]:
    """Each kind of value inside each kind of holder, twice."""
    for inner, outer, middle, last in product(SCALARS, range(3), range(3), range(3)):
        yield _holder(outer, _holder(middle, _holder(last, inner)))


def _holder(kind: int, inner: Schema) -> dict[str, Any]:
    if kind == 0:
        return {"type": "array", "items": inner, "maxItems": 3}
    if kind == 1:
        return {"type": "object", "properties": {"held": inner}, "required": ["held"], "additionalProperties": False}
    return {"anyOf": [inner, {"type": "object", "properties": {"alt": inner}, "additionalProperties": False}]}


def _recursive() -> Iterator[Schema]:
    node = {
        "type": "object",
        "properties": {"value": SCALARS[2], "next": {"$ref": "#/$defs/node"}},
        "required": ["value"],
    }
    yield {"$ref": "#/$defs/node", "$defs": {"node": {**node, "additionalProperties": False}}}
    tree = {"type": "object", "properties": {"leaves": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}}
    yield {**tree, "required": ["leaves"], "additionalProperties": False}
    yield {"anyOf": [SCALARS[0], {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}]}
    even = {
        "anyOf": [
            {"const": 0},
            {"type": "array", "prefixItems": [{"$ref": "#/$defs/odd"}], "items": False, "minItems": 1},
        ]
    }
    odd = {"type": "array", "prefixItems": [{"$ref": "#/$defs/even"}], "items": False, "minItems": 1}
    yield {"$ref": "#/$defs/even", "$defs": {"even": even, "odd": odd}}
    yield {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "string", "enum": ["x"]}}}
    yield {
        "type": "object",
        "properties": {"twice": {"$ref": "#/properties/once"}, "once": SCALARS[2]},
        "required": ["twice"],
    }


def _without_none(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if value is not None}
