"""Checks a JSON Schema with jsonschema against the metaschema of its draft. Nothing is ever fetched.

Only the sandbox imports this, because there the check has a time limit: it is slow for large schemas.
"""

from functools import cache
from typing import Any

from jsonschema import (
    Draft3Validator,
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # it states no types

from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.parts import member

_LATEST = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS = {
    str(draft.META_SCHEMA["$schema"]).rstrip("#"): draft
    for draft in (
        Draft3Validator,
        Draft4Validator,
        Draft6Validator,
        Draft7Validator,
        Draft201909Validator,
        Draft202012Validator,
    )
}


def check_metaschema(schema: Any) -> None:
    """Checks against the draft of `$schema`, or 2020-12 if that is missing or unknown. Raises GrammarError with the
    place."""
    given = schema.get("$schema") if isinstance(schema, dict) else None
    uri = given.rstrip("#") if isinstance(given, str) else ""
    found = best_match(_validator(uri if uri in _DRAFTS else _LATEST).iter_errors(schema))
    if found is not None:
        raise GrammarError(_reason(found), _path(found))


@cache
def _validator(uri: str) -> Validator:
    draft = _DRAFTS[uri]
    return draft(_flat(draft.META_SCHEMA) if uri == _LATEST else draft.META_SCHEMA)


def _flat(metaschema: Any) -> dict[str, Any]:
    """Merges the vocabularies of the 2020-12 metaschema into one document, which checks several times faster.

    That is possible as each allows unknown keywords and refers to the whole by "$dynamicRef": "#meta".
    """
    properties = dict(metaschema["properties"])
    definitions: dict[str, Any] = {}
    for vocabulary in metaschema["allOf"]:
        contents: Any = REGISTRY.contents(_LATEST.rpartition("/")[0] + "/" + vocabulary["$ref"])
        properties |= contents["properties"]
        definitions |= contents.get("$defs", {})
    return {
        "$schema": _LATEST,
        "type": ["object", "boolean"],
        "properties": _rooted(properties),
        "$defs": _rooted(definitions),
    }


def _rooted(value: Any) -> Any:
    if isinstance(value, list):
        return [_rooted(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("$dynamicRef") == "#meta":
        return {"$ref": "#"}
    return {key: _rooted(each) for key, each in value.items()}


def _path(error: ValidationError) -> str:
    path = ""
    for step in error.absolute_path:
        path = f"{path}[{step}]" if isinstance(step, int) else member(path, step)
    return path


def _reason(error: ValidationError) -> str:
    allowed: Any = error.validator_value
    match error.validator:
        case "type":
            return f"it must be of type {' or '.join([allowed] if isinstance(allowed, str) else allowed)}"
        case "enum":
            return f"it must be one of {', '.join(map(str, allowed))}"
        case "minimum":
            return f"it must be at least {allowed}"
        case "exclusiveMinimum":
            return f"it must be above {allowed}"
        case "minItems":
            return f"it must have at least {allowed} items"
        case "uniqueItems":
            return "its items must differ"
        case "anyOf" if error.context:
            return _reason(error.context[0])
        case "pattern":
            return f"it must match {allowed}"
    return "JSON Schema does not allow it here"
