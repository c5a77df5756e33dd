"""Schemas are checked against the metaschema of their draft, with the place of a fault, and without a network."""

import random
import urllib.request
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from appliance.engine.grammar.complaints import meaning
from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.metaschema import check_metaschema
from appliance.engine.grammar.sandbox.process import tried

from .schemas import generated, written
from .walks import backend, constraint

DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
WRONG: list[tuple[Any, str, str]] = [
    ({"type": "purple"}, ".type", "one of array, boolean"),
    ({"required": [1]}, ".required[0]", "of type string"),
    ({"required": ["a", "a"]}, ".required", "differ"),
    ({"properties": {"a.b": {"minLength": -1}}}, '.properties["a.b"].minLength', "at least 0"),
    ({"anyOf": [{}, {"items": {"enum": 3}}]}, ".anyOf[1].items.enum", "of type array"),
    ({"title": 5}, ".title", "of type string"),
    ({"$defs": {"x": 4}}, ".$defs.x", "object or boolean"),
    ({"multipleOf": 0}, ".multipleOf", "above 0"),
    ({"anyOf": []}, ".anyOf", "at least 1"),
    ({"$schema": DRAFT_7, "items": [{"required": "a"}]}, ".items[0].required", "of type array"),
    ({"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": 3}, ".exclusiveMinimum", "of type boolean"),
    ({"$schema": "https://example.com/mine", "exclusiveMinimum": True}, ".exclusiveMinimum", "of type number"),
    ([], "", "object or boolean"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(urllib.request, "urlopen", fetch)


@pytest.mark.parametrize(("schema", "path", "words"), WRONG, ids=[path for _, path, _ in WRONG])
def test_what_is_no_schema_is_named(schema: Any, path: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as refused:
        check_metaschema(schema)
    assert refused.value.path == path


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"$ref": "https://example.com/elsewhere", "$id": "https://example.com/here"},
        {"$schema": "https://example.com/mine", "const": 1},
        {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True},
        {"$schema": DRAFT_7, "items": [{}]},
    ],
)
def test_schemas_pass(schema: Any) -> None:
    check_metaschema(schema)


def test_the_flat_metaschema_says_what_the_official_one_says() -> None:
    official, draw = Draft202012Validator(Draft202012Validator.META_SCHEMA), random.Random(5)
    schemas = [schema for _, schema in (*generated(), *written())][::9]
    verdicts = set()
    for schema in schemas + [spoiled(schema, draw) for schema in schemas]:
        try:
            check_metaschema(schema)
            passed = True
        except GrammarError:
            passed = False
        assert official.is_valid(schema) == passed, schema
        verdicts.add(passed)
    assert verdicts == {True, False}


def spoiled(schema: Any, draw: random.Random) -> Any:
    """The schema with one value in it replaced."""
    copy = msgspec.json.decode(msgspec.json.encode(schema))
    holder, at = copy, copy
    while isinstance(at, dict | list) and at:
        holder, key = at, draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
        at = at[key]
        if draw.random() < 0.3:
            break
    if isinstance(holder, dict | list) and holder:
        holder[key] = draw.choice([None, -1, 1.5, "word", [], {}, [1, 1], True])
    return copy


PLACE_IN_TAG = ".tags[0].schema.required[0]"


def test_a_trial_checks_schemas_wherever_they_are() -> None:
    wrong = {"required": [1]}
    for kind, source, path in (
        ("json_schema", wrong, ".required[0]"),
        (
            "tags",
            {"triggers": ["<"], "tags": [{"begin": "<", "schema": wrong, "end": ""}]},
            ".tags[0].schema.required[0]",
        ),
    ):
        verdict = tried(backend(), constraint(kind, msgspec.json.encode(source).decode()))
        assert (verdict.path, verdict.text) == (path, None)


INNER = ["<non-verbose/>", "Some(", "NoExtension", "llguidance", "regex parse error", "x-guidance", "\n", "^"]
KINDS = [
    ("json_schema", '{"type":"integer","minimum":5,"maximum":1}'), ("json_schema", '{"not":{}}'),
    ("json_schema", '{"oneOf":[{"type":"number"},{"type":"integer"}]}'), ("json_schema", '{"pattern":"(?=a)b"}'),
    ("json_schema", '{"enum":[]}'), ("json_schema", '{"type":"string","minLength":4,"maxLength":2}'),
    ("json_schema", '{"patternProperties":{"^a":{"type":"null"},"^ab":{"type":"boolean"}}}'),
    ("json_schema", '{"type":"array","items":false,"minItems":1}'), ("regex", "(("), ("regex", r"(a)\1"),
    ("regex", "(" * 3000 + "a" + ")" * 3000), ("regex", "a{99999999999}"), ("lark", "start: nowhere"),
    ("lark", 'start: ("a"'), ("lark", "start: <|nope|>"), ("lark", "start: @nowhere"), ("lark", "start: A\nA.2: /a/"),
    ("lark", "start: " + "(" * 300), ("lark", "start: <[99999999]>"), ("lark", "start: /[/"), ("gbnf", "root ::= ("),
    ("gbnf", "root ::= nowhere"), ("gbnf", 'root ::= "a'), ("regex", "a^b"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source"), KINDS, ids=[f"{kind} {source[:30]}" for kind, source in KINDS])
def test_no_inner_message_reaches_a_client(kind: str, source: str) -> None:
    with pytest.raises(GrammarError) as refused:
        backend().compile(constraint(kind, source))
    said = str(refused.value)
    assert 5 < len(said) < 160
    assert not [inner for inner in INNER if inner in said]


def test_an_unknown_message_is_not_passed_on() -> None:
    assert meaning("thread panicked at src/lib.rs:12") == "it cannot be compiled"
    assert meaning("at 3(7): Expected token, got </s>") == "line 3, column 7: it cannot be read"
