"""The schemas of calls that must be, and what reads them."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from appliance.text.parsing.events import merge_events
from appliance.text.tools.forced import REQUIRED_CALLS, named_call, named_schema, required_schema
from appliance.text.tools.format import ToolContext, ToolFormat

from .parsing import calls_of, content_of

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


def fits(schema: dict[str, Any], value: Any) -> bool:
    Draft202012Validator.check_schema(schema)
    return bool(Draft202012Validator(schema).is_valid(value))


def test_arguments_that_the_schema_does_not_know_are_not_made() -> None:
    assert fits(named_schema(CITY), {"city": "Oslo"})
    assert not fits(named_schema(CITY), {"city": "Oslo", "x": 1})
    assert not fits(named_schema(None), {"x": 1})
    assert fits(named_schema({**CITY, "additionalProperties": True}), {"city": "Oslo", "x": 1})
    assert fits(named_schema({"patternProperties": {"^x": {}}}), {"x1": 1})


def test_required_calls() -> None:
    schema = required_schema({"weather": CITY, "now": None}, parallel=True)
    assert fits(schema, [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}])
    assert not fits(schema, [])
    assert not fits(schema, [{"name": "now", "arguments": {"city": "Oslo"}}])
    assert not fits(schema, [{"name": "other", "arguments": {}}])
    assert not fits(required_schema({"now": None}, parallel=False), [{"name": "now", "arguments": {}}] * 2)


def test_definitions_of_tools_keep_apart() -> None:
    schema = required_schema({"tree": TREE, "other": OTHER}, parallel=True)
    assert fits(schema, [{"name": "tree", "arguments": {"root": {"next": {"x": 1}}}}])
    assert not fits(schema, [{"name": "tree", "arguments": {"root": {"next": {"x": "1"}}}}])
    assert fits(schema, [{"name": "other", "arguments": {"n": True}}])
    assert not fits(schema, [{"name": "other", "arguments": {"n": {}}}])


FORMS: list[tuple[ToolFormat, str, tuple[tuple[str, str], ...]]] = [
    (named_call("f"), ' {"a": [1, "}"]}', (("f", '{"a": [1, "}"]}'),)),
    (named_call("f"), '{"a": [1', (("f!", '{"a": [1'),)),
    (REQUIRED_CALLS, '[{"name": "f", "arguments": {"a": 1}},{"name":"g","arguments":{}}]',
     (("f", '{"a": 1}'), ("g", "{}"))),
    (REQUIRED_CALLS, '[{"name": "f", "arguments": {"a', (("f!", '{"a'),)),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "calls"), FORMS)
def test_reading_them(form: ToolFormat, text: str, calls: tuple[tuple[str, str], ...]) -> None:
    for at in range(len(text)):
        parser = form.new_parser(ToolContext({}))
        events = merge_events(parser.feed(text[:at]) + parser.feed(text[at:]) + parser.finish())
        assert calls_of(events) == calls
        assert content_of(events) == ""
