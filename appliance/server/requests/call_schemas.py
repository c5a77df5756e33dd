"""Schemas of the arguments of a call, and of a list of calls."""

from collections.abc import Mapping
from typing import Any

from appliance.engine.grammar.parts import standalone
from appliance.requests.errors import invalid

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_OPEN_WORDS = {"patternProperties", "propertyNames", "unevaluatedProperties", "$ref", "anyOf", "oneOf", "allOf", "not"}


def arguments_schema(parameters: Mapping[str, Any] | None, field: str) -> dict[str, Any]:
    """Returns the schema of a call's arguments: the parameters' schema, without arguments that it does not name.

    A schema may leave others open in words of its own. A tool without parameters takes none. Raises ApiError 400 for
    parameters that are no object, naming `field`.
    """
    if not parameters:
        return dict(_NO_ARGUMENTS)
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        where = f"{field}.type"
        raise invalid(where, f"{where}: it must be object, for that is what arguments are", "invalid_schema")
    closed = {} if _OPEN_WORDS & parameters.keys() else {"additionalProperties": False}
    return {**closed, **parameters, "type": "object"}


def calls_schema(
    schemas: Mapping[str, Any], fields: list[str], *, parallel: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the schema of a list of calls, and the fields that its parts come from, by their paths.

    schemas: of the arguments, by the tool's name. fields: where these stand in the request, in the same order. A
    reference in a tool's schema is from that schema's own root.
    """
    definitions: dict[str, Any] = {}
    places: dict[str, str] = {}
    calls = []
    for place, ((name, schema), field) in enumerate(zip(schemas.items(), fields, strict=True)):
        arguments, own, paths = standalone(schema, schema, f"tool{place}_")
        definitions |= own
        places |= {f".$defs.{key}": field + path for key, path in paths.items()}
        places[f".items.anyOf[{place}].properties.arguments"] = field
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    whole: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        whole["maxItems"] = 1
    return {**whole, "$defs": definitions} if definitions else whole, places
