"""The JSON Schema of a deployment, for editors and for check-jsonschema, written to schemas/deployment.v1.json."""

import json
from typing import Any

from pydantic_core import PydanticUndefined

from appliance.spec.deployment import DeploymentSpec
from appliance.spec.fields import Section
from appliance.spec.tree import Field, fields_of, walk

SCHEMA_ID = "http://json-schema.org/draft-07/schema#"  # the newest that every editor's YAML server reads
FILE_NAME = "deployment.v1.json"

_REFERENCE = {"$ref": "#/definitions/Reference"}
_REFERENCE_DEF = {
    "description": "A value from outside: ${env:NAME}, ${env:NAME:?message} or ${file:path}.",
    "type": "string",
    "pattern": r"\$\{(env|file):[^}]+\}",
}


def deployment_schema() -> dict[str, Any]:
    """Returns a draft 7 schema. Unknown keys are errors, `x-` keys are free; fields have x-apply, x-auto, x-since and
    x-vllm."""
    generated = DeploymentSpec.model_json_schema(mode="validation")
    sections = {section.__name__: section for section in _sections()}
    definitions = {
        name: _section_schema(section, generated if section is DeploymentSpec else generated["$defs"][name])
        for name, section in sections.items()
    }
    root = definitions.pop(DeploymentSpec.__name__)
    whole = {"required": root.pop("required")} | {"properties": _required_below(definitions)}
    return {
        "$schema": SCHEMA_ID,
        "$id": FILE_NAME,
        "title": "appliance deployment",
        **root,
        "if": {"required": ["include"]},  # required fields may then be in an included file
        "else": whole,
        "definitions": {**definitions, "Reference": _REFERENCE_DEF},
    }


def _required_below(definitions: dict[str, Any]) -> dict[str, Any]:
    """Moves the `required` lists of the root's sections out of their definitions. List items keep theirs, as an item is
    never merged from several files."""
    found: dict[str, Any] = {}
    for each in fields_of(DeploymentSpec):
        if each.child is not None and not each.is_list and "required" in definitions[each.child.__name__]:
            found[each.name] = {"required": definitions[each.child.__name__].pop("required")}
    return found


def schema_text() -> str:
    """Returns the schema's text, as it is committed."""
    return json.dumps(deployment_schema(), indent=2) + "\n"


def _sections() -> list[type[Section]]:
    children = [field.child for field in walk() if field.child is not None]
    return list(dict.fromkeys([DeploymentSpec, *children]))


def _section_schema(section: type[Section], generated: dict[str, Any]) -> dict[str, Any]:
    properties = {found.name: _property(found, generated["properties"][found.name]) for found in fields_of(section)}
    schema: dict[str, Any] = {
        "type": "object",
        "description": section.doc,
        "properties": properties,
        "patternProperties": {"^x-": {"description": "Yours; not read."}},
        "additionalProperties": False,
    }
    required = [found.name for found in fields_of(section) if found.doc.default is PydanticUndefined]
    schema |= {"required": required} if required else {}
    return {"anyOf": [{"type": "string", "pattern": section.short_form}, schema]} if section.short_form else schema


def _property(found: Field, generated: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a field: its type, with references allowed for scalars, and its documentation."""
    kind = {key: value for key, value in generated.items() if key not in ("title", "description", "default")}
    schema = _with_references(_plain(kind))
    text = found.doc.doc if found.doc.built else f"{found.doc.doc} Not in this version."
    if "$ref" in schema:  # draft 7 ignores all keywords beside a $ref
        schema = {"allOf": [schema]}
    schema["description"] = text
    if found.doc.default is not PydanticUndefined and found.child is None:
        schema["default"] = found.default_text if isinstance(found.doc.default, int | float) else found.doc.default
        if isinstance(found.doc.default, bool | int | float) and not _is_text(found):
            schema["default"] = found.doc.default
    if not found.doc.built:
        schema["doNotSuggest"] = True  # yaml-language-server leaves such fields out of its completions
    schema["x-apply"] = found.doc.apply
    schema["x-since"] = found.doc.since
    if found.doc.auto:
        schema["x-auto"] = found.doc.auto
    if found.doc.vllm:
        schema["x-vllm"] = found.doc.vllm
    return schema


def _is_text(found: Field) -> bool:
    return found.default_text[-1:].isalpha()


def _plain(node: Any) -> Any:
    """Copies a schema without titles, and with references to `definitions`."""
    if isinstance(node, dict):
        return {
            key: value.replace("#/$defs/", "#/definitions/") if key == "$ref" else _plain(value)
            for key, value in node.items()
            if key not in ("title", "writeOnly")
        }
    return [_plain(item) for item in node] if isinstance(node, list) else node


def _with_references(node: dict[str, Any]) -> dict[str, Any]:
    """Allows `${...}` for every scalar type that is not free text, also inside lists and mappings."""
    node = dict(node)
    if "anyOf" in node:
        branches = [_with_inner_references(branch) for branch in node["anyOf"]]
        wants = any(_is_narrow_scalar(branch) for branch in branches) and not any(map(_is_free_text, branches))
        node["anyOf"] = [*branches, _REFERENCE] if wants else branches
        return node
    if _is_narrow_scalar(node):
        return {"anyOf": [node, _REFERENCE]}
    return _with_inner_references(node)


def _with_inner_references(node: dict[str, Any]) -> dict[str, Any]:
    node = dict(node)
    if isinstance(node.get("items"), dict):
        node["items"] = _with_references(node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _with_references(node["additionalProperties"])
    return node


def _is_free_text(node: dict[str, Any]) -> bool:
    return node.get("type") == "string" and not {"pattern", "enum", "const"} & set(node)


def _is_narrow_scalar(node: dict[str, Any]) -> bool:
    is_choice = "enum" in node or "const" in node
    return (
        is_choice
        or node.get("type") in ("integer", "number", "boolean")
        or (node.get("type") == "string" and "pattern" in node)
    )
