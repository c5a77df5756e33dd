"""Calls that a request demands. A grammar holds the model to plain JSON, so no format of the model's own is needed:
the arguments alone for a named tool, a list of calls for `required`.
"""

from collections.abc import Mapping
from typing import Any

from appliance.text.parsing.json_text import Malformed, json_value
from appliance.text.parsing.reader import Reader, Reading
from appliance.text.tools.format import ToolContext, ToolFormat
from appliance.text.tools.json_calls import call_array
from appliance.text.tools.writer import CallWriter

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_OPEN_WORDS = {"patternProperties", "propertyNames", "unevaluatedProperties", "$ref", "anyOf", "oneOf", "allOf", "not"}


def named_call(name: str) -> ToolFormat:
    """The text is the arguments of one call of `name`."""

    def arguments(reader: Reader, writer: CallWriter) -> Reading[None]:
        if (yield from reader.skip_space()) != "{":
            raise Malformed
        writer.start(name)
        yield from json_value(reader, writer.arguments)
        writer.done()

    def script(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
        yield from writer.attempt(arguments(reader, writer))

    return ToolFormat(name="named", script=script)


def _required(reader: Reader, writer: CallWriter, context: ToolContext) -> Reading[None]:
    yield from writer.attempt(call_array(reader, writer))


REQUIRED_CALLS = ToolFormat(name="required", script=_required)


def named_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the arguments of a call satisfy: the parameters' schema, and no arguments that it does not know.

    A schema may leave others open in words of its own. A tool without parameters takes none.
    """
    if not parameters:
        return dict(_NO_ARGUMENTS)
    closed = {} if _OPEN_WORDS & parameters.keys() else {"additionalProperties": False}
    return {"type": "object", **closed, **parameters}


def required_schema(tools: Mapping[str, Mapping[str, Any] | None], *, parallel: bool) -> dict[str, Any]:
    """What a list of calls of these tools satisfies. tools: the schema of the parameters by name."""
    definitions: dict[str, Any] = {}
    calls = []
    for place, (name, parameters) in enumerate(tools.items()):
        # Definitions go to the top: references in them are from the root of a schema.
        inner = _renamed(named_schema(parameters), f"tool{place}_")
        definitions |= {key: value for home in ("$defs", "definitions") for key, value in inner.pop(home, {}).items()}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": inner},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        schema["maxItems"] = 1
    return {**schema, "$defs": definitions} if definitions else schema


def _renamed(schema: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The schema with its definitions, and the references to them, under names of its own."""
    renamed: dict[str, Any] = _rename(schema, prefix)
    for home in ("$defs", "definitions"):
        if isinstance(renamed.get(home), dict):
            renamed[home] = {prefix + name: value for name, value in renamed[home].items()}
    return renamed


def _rename(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_rename(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _reference(each, prefix) if key == "$ref" else _rename(each, prefix) for key, each in value.items()}


def _reference(reference: Any, prefix: str) -> Any:
    if isinstance(reference, str):
        for home in ("#/$defs/", "#/definitions/"):
            if reference.startswith(home):
                return "#/$defs/" + prefix + reference.removeprefix(home)
    return reference
