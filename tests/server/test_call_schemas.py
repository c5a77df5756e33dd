"""The schemas of calls that must be."""

from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from appliance.plan.serving_types import StructuredPlan
from appliance.requests.errors import ApiError
from appliance.server.requests.call_schemas import arguments_schema, calls_schema
from appliance.server.requests.tools import ToolWish
from tests.engine.grammar.walks import backend, walk

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "x": {"type": "integer"}}}},
}
OTHER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"$ref": "#/definitions/node"}},
    "definitions": {"node": {"type": "boolean"}},
}
ITSELF: dict[str, Any] = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
    "required": ["v"],
}
WORDS: dict[str, Any] = {
    "type": "object",
    "properties": {"$ref": {"const": {"$ref": "#/$defs/node"}}, "again": {"$ref": "#/properties/$ref"}},
    "required": ["$ref", "again"],
}


def fits(schema: dict[str, Any], value: Any) -> bool:
    Draft202012Validator.check_schema(schema)
    return bool(Draft202012Validator(schema).is_valid(value))


def named(parameters: dict[str, Any] | None) -> dict[str, Any]:
    return arguments_schema(parameters, "f")


def required(tools: dict[str, Any], *, parallel: bool = True) -> dict[str, Any]:
    schemas = {name: named(schema) for name, schema in tools.items()}
    return calls_schema(schemas, [f"tools[{place}]" for place in range(len(tools))], parallel=parallel)[0]


def test_arguments_that_the_schema_does_not_know_are_not_made() -> None:
    assert fits(named(CITY), {"city": "Oslo"})
    assert not fits(named(CITY), {"city": "Oslo", "x": 1})
    assert not fits(named(None), {"x": 1})
    assert fits(named({**CITY, "additionalProperties": True}), {"city": "Oslo", "x": 1})
    assert fits(named({"patternProperties": {"^x": {}}}), {"x1": 1})
    assert not fits(named({**CITY, "type": ["object", "null"]}), None)


@pytest.mark.parametrize("kind", ["array", "string", ["array", "null"], None])
@pytest.mark.parametrize("mode", ["required", "named"])
def test_parameters_are_an_object(kind: Any, mode: Any) -> None:
    wish = ToolWish(mode, {"now": None, "list": {"type": kind}}, [], "list")
    with pytest.raises(ApiError) as refused:
        wish.constraint(StructuredPlan())
    assert refused.value.param == "tools[1].function.parameters.type"


def test_required_calls() -> None:
    schema = required({"weather": CITY, "now": None})
    assert fits(schema, [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}])
    assert not fits(schema, [])
    assert not fits(schema, [{"name": "now", "arguments": {"city": "Oslo"}}])
    assert not fits(schema, [{"name": "other", "arguments": {}}])
    assert not fits(required({"now": None}, parallel=False), [{"name": "now", "arguments": {}}] * 2)


def test_definitions_of_tools_keep_apart() -> None:
    schema = required({"tree": TREE, "other": OTHER})
    assert fits(schema, [{"name": "tree", "arguments": {"root": {"next": {"x": 1}}}}])
    assert not fits(schema, [{"name": "tree", "arguments": {"root": {"next": {"x": "1"}}}}])
    assert fits(schema, [{"name": "other", "arguments": {"n": True}}])
    assert not fits(schema, [{"name": "other", "arguments": {"n": {}}}])


def test_a_reference_to_the_root_is_to_the_parameters() -> None:
    schema = required({"other": OTHER, "tree": ITSELF})
    call = {"name": "tree", "arguments": {"v": 1, "kids": [{"v": 2, "kids": []}]}}
    assert fits(schema, [call])
    assert not fits(schema, [{"name": "tree", "arguments": {"v": 1, "kids": [[call]]}}])
    assert not fits(schema, [{"name": "tree", "arguments": {"v": 1, "kids": [{"v": 2, "w": 3}]}}])


def test_words_that_look_like_references_are_left_alone() -> None:
    literal = {"$ref": "#/$defs/node"}
    assert fits(required({"words": WORDS}), [{"name": "words", "arguments": {"$ref": literal, "again": literal}}])


def test_places_are_those_of_the_request() -> None:
    constraint = ToolWish("required", {"now": None, "tree": TREE, "itself": ITSELF}, []).constraint(StructuredPlan())
    assert constraint is not None
    at = "tools[{}].function.parameters"
    assert constraint.field_of(".items.anyOf[1].properties.arguments.properties.x") == at.format(1) + ".properties.x"
    assert constraint.field_of(".$defs.tool1_0.properties.x") == at.format(1) + ".$defs.node.properties.x"
    assert constraint.field_of(".$defs.tool2_0.properties.kids") == at.format(2) + ".properties.kids"
    assert constraint.field_of("") == "tools"


@pytest.mark.parametrize("tools", [{"tree": ITSELF}, {"now": None, "id": {"properties": {"id": {"const": 2**60 + 1}}}}])
def test_walks_end_in_calls_that_fit(tools: dict[str, Any]) -> None:
    import json

    constraint = ToolWish("required", tools, []).constraint(StructuredPlan(any_whitespace=False))
    assert constraint is not None
    grammar = backend().compile(constraint)
    said = [text for seed in range(20) if (text := walk(grammar, seed, calm=0.7)) is not None]
    assert said
    for text in said:
        for call in json.loads(text):
            jsonschema.validate(call["arguments"], named(tools[call["name"]]))
