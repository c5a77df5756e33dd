"""The output of a random walk satisfies the schema, for every schema; keywords that are not enforced are refused."""

import datetime
import json
import re
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import msgspec
import pytest

from appliance.engine.grammar.interface import GrammarError
from appliance.engine.grammar.locate import locate
from appliance.engine.grammar.schema import MAX_DEPTH, checked_schema

from .schemas import Schema, generated, written
from .walks import backend, constraint, json_grammar, walk

SEEDS = range(6)
SCHEMAS = [*generated(), *written()]
FORMATS = jsonschema.FormatChecker()
FORMATS.checks("date-time", raises=ValueError)(lambda text: _moment(text, datetime.datetime))
FORMATS.checks("time", raises=ValueError)(lambda text: _moment(text, datetime.time))
FORMATS.checks("uri")(lambda text: not isinstance(text, str) or bool(urlsplit(text).scheme))
FORMATS.checks("hostname")(lambda text: not isinstance(text, str) or len(text) < 254)
FORMATS.checks("duration")(lambda text: not isinstance(text, str) or bool(re.match(r"P[0-9T]", text)))


def _moment(text: Any, kind: type[datetime.datetime] | type[datetime.time]) -> bool:
    return not isinstance(text, str) or bool(kind.fromisoformat(text.upper().replace("Z", "+00:00")) or True)


def check(name: str, schema: Schema, whitespace: str | None) -> int:
    """Returns how many walks ended."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    grammar = json_grammar(schema, whitespace)
    ended = 0
    for seed in SEEDS:
        said = walk(grammar, seed)
        if said is not None:
            ended += 1
            problems = [problem.message for problem in validator.iter_errors(json.loads(said))]
            assert not problems, (name, said, problems)
    return ended


def test_there_are_many_schemas() -> None:
    assert len(SCHEMAS) >= 500
    assert len({name for name, _ in SCHEMAS}) == len(SCHEMAS)


@pytest.mark.parametrize("part", range(10))
def test_every_answer_satisfies_its_schema(part: int) -> None:
    schemas = SCHEMAS[part::10]
    ended = [(name, check(name, schema, "")) for name, schema in schemas]
    assert sum(count for _, count in ended) >= 0.9 * len(SEEDS) * len(schemas), ended
    assert sum(count == 0 for _, count in ended) <= 2  # patterns with an open beginning: few walks meet their end


def test_a_closed_schema_compiles_and_its_answers_satisfy_the_open_one() -> None:
    for name, schema in SCHEMAS:
        closed = checked_schema(schema, additional_properties=False)
        if closed == checked_schema(schema):
            continue
        said = walk(json_grammar(closed), seed=0)
        assert said is None or not [*jsonschema.Draft202012Validator(schema).iter_errors(json.loads(said))], name


def test_whitespace_changes_nothing_but_the_gaps() -> None:
    for name, schema in SCHEMAS[::25]:
        check(name, schema, None)
        check(name, schema, "[ \\n]{0,3}")


def test_gaps_have_an_end() -> None:
    pretty = '{\n    "a": [\n        true\n    ]\n}'
    schema = {"properties": {"a": {"items": {"type": "boolean"}}}, "required": ["a"], "type": "object"}
    assert says(json_grammar(schema, None), pretty)
    assert not says(json_grammar(schema, None), "{" + " " * 65)
    assert not says(json_grammar(schema, ""), pretty)


def test_formats_hold_at_their_edges() -> None:
    for name in ("date", "time", "date-time", "hostname"):
        validator = jsonschema.Draft202012Validator({"format": name}, format_checker=FORMATS)
        grammar = json_grammar({"type": "string", "format": name})
        for seed in range(60):
            said = walk(grammar, seed, calm=0.6)
            assert said is None or not list(validator.iter_errors(json.loads(said))), said


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"format": "date"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"', '"2024-02-30"']),
        ({"properties": {"a": {"type": "boolean"}}}, ['{"a":true}'], ['{"\\u0061":1}']),
        ({"allOf": [{"type": "string"}], "maxLength": 2}, ['"ab"'], ['"abc"']),
        ({"type": "integer", "multipleOf": 7}, ["49"], ["50", "7.5"]),
        ({"enum": [{"a": 1}]}, ['{"a":1}'], ['{"a":2}', "{}"]),
    ],
)  # fmt: skip
def test_what_is_accepted(schema: Schema, accepted: list[str], refused: list[str]) -> None:
    grammar = json_grammar(schema)
    assert [says(grammar, text) for text in accepted] == [True] * len(accepted)
    assert [says(grammar, text) for text in refused] == [False] * len(refused)


def says(grammar: Any, text: str) -> bool:
    from appliance.engine.grammar.interface import MatcherError

    from .vocabulary import FIRST_BYTE

    matcher = grammar.start()
    try:
        matcher.consume([FIRST_BYTE + byte for byte in text.encode()])
    except MatcherError:
        return False
    return bool(matcher.is_accepting)


UNENFORCED: list[tuple[Schema, str]] = [
    ({"uniqueItems": True}, ".uniqueItems"),
    ({"not": {"type": "string"}}, ".not"),
    ({"if": {}, "then": {}}, ".if"),
    ({"properties": {"a": {"contains": {}}}}, ".properties.a.contains"),
    ({"items": {"anyOf": [{}, {"propertyNames": {}}]}}, ".items.anyOf[1].propertyNames"),
    ({"prefixItems": [{"dependentRequired": {}}]}, ".prefixItems[0].dependentRequired"),
    ({"additionalProperties": {"unevaluatedItems": False}}, ".additionalProperties.unevaluatedItems"),
    ({"patternProperties": {"^a": {"format": "idn-email"}}}, '.patternProperties["^a"].format'),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {}}}}, ".$defs.b.not"),
    ({"$ref": "#named", "$defs": {"a": {"$anchor": "named"}}}, ".$ref"),
    ({"$ref": "other.json"}, ".$ref"),
    ({"type": "integer", "format": "int32"}, ".format"),
    ({"minimum": 1, "exclusiveMinimum": True}, ".exclusiveMinimum"),
    ({"items": [{}]}, ".items"),
    ({"nullable": True}, ".nullable"),
    ({"minProperties": 2}, ".minProperties"),
    ({"properties": []}, ".properties"),
    ({"anyOf": {}}, ".anyOf"),
    ({"maxLength": -1}, ".maxLength"),
    ({"minItems": "1"}, ".minItems"),
    ({"properties": {"a": 1}}, ".properties.a"),
    ({"x-guidance": {"lenient": True}}, ".x-guidance"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path"), UNENFORCED, ids=[path for _, path in UNENFORCED])
def test_what_is_not_enforced_is_refused_with_its_path(schema: Schema, path: str) -> None:
    with pytest.raises(GrammarError) as refused:
        checked_schema(schema)
    assert refused.value.path == path


UNCOMPILED: list[tuple[Schema, str]] = [
    ({"properties": {"a": {"pattern": "(?<=a)b"}}}, ".properties.a.pattern"),
    ({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "("}]}, ".anyOf[1].pattern"),
    ({"items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, ".items.oneOf"),
    ({"type": "object", "properties": {"b": {"enum": []}}, "required": ["b"]}, ".properties.b.enum"),
    ({"type": "string", "minLength": 4, "maxLength": 2}, ".minLength"),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "purple"}}}, ".$defs.n.type"),
    ({"patternProperties": {"^a": {"type": "null"}, "^ab": {"type": "boolean"}}}, ".patternProperties"),
]


@pytest.mark.parametrize(("schema", "path"), UNCOMPILED, ids=[path for _, path in UNCOMPILED])
def test_what_does_not_compile_is_refused_with_its_path(schema: Schema, path: str) -> None:
    with pytest.raises(GrammarError) as refused:
        json_grammar(schema)
    assert refused.value.path == path


def test_neutral_keywords_are_taken_away_and_objects_closed() -> None:
    schema = {"properties": {"uniqueItems": {"uniqueItems": False, "enum": [{"properties": {}}]}}, "nullable": False}
    inner: Schema = {"enum": [{"properties": {}}]}
    assert checked_schema(schema) == {"properties": {"uniqueItems": inner}}
    closed = checked_schema(schema, additional_properties=False)
    assert closed == {"properties": {"uniqueItems": inner}, "additionalProperties": False}


A: dict[str, Any] = {"properties": {"a": {"type": "null"}}}
B: dict[str, Any] = {"properties": {"b": {"type": "null"}}}
CLOSED = {"additionalProperties": False}
CLOSINGS: list[tuple[str, Schema, Schema]] = [
    ("below", {"items": A}, {"items": {**A, **CLOSED}}),
    ("alternatives", {"anyOf": [A, B]}, {"anyOf": [{**A, **CLOSED}, {**B, **CLOSED}]}),
    ("what is said stays", {**A, "additionalProperties": True}, {**A, "additionalProperties": True}),
    ("a free object", {"type": "object"}, {"type": "object"}),
    ("a required name beside", {**A, "required": ["b"]}, {**A, "required": ["b"]}),
    ("more than are named", {**A, "minProperties": 2, "required": ["a"]}, {**A, "minProperties": 2, "required": ["a"]}),
    ("patterns", {**A, "patternProperties": {"^x": {}}}, {**A, "patternProperties": {"^x": {}}}),
    ("merged", {"allOf": [A, B]}, {"allOf": [A, B]}),
    ("one merged", {"allOf": [A]}, {"allOf": [{**A, **CLOSED}]}),
    ("beside", {**A, "anyOf": [B, {"required": ["c"]}]}, {**A, "anyOf": [B, {"required": ["c"]}]}),
    ("inherited", {**A, "$ref": "#/$defs/b", "$defs": {"b": B}}, {**A, "$ref": "#/$defs/b", "$defs": {"b": B}}),
    ("referred", {"$ref": "#/$defs/b", "$defs": {"b": B}}, {"$ref": "#/$defs/b", "$defs": {"b": {**B, **CLOSED}}}),
    ("below a part", {"allOf": [{"properties": {"x": A}}, B]}, {"allOf": [{"properties": {"x": {**A, **CLOSED}}}, B]}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "closed"), [each[1:] for each in CLOSINGS], ids=[each[0] for each in CLOSINGS])
def test_objects_are_closed_where_that_forbids_nothing_that_is_asked(schema: Schema, closed: Schema) -> None:
    given = json.loads(json.dumps(schema))  # one place each, as a request has it
    assert checked_schema(given, additional_properties=False) == closed
    json_grammar(closed)


def test_depth_and_size_have_bounds() -> None:
    deep: Any = {}
    for _ in range(MAX_DEPTH):
        deep = {"items": deep}
    with pytest.raises(GrammarError, match="nested"):
        checked_schema(deep)
    with pytest.raises(GrammarError, match="more than"):
        checked_schema({"enum": list(range(30_000))})


def test_a_library_that_says_nothing_of_a_keyword_is_still_asked() -> None:
    """If the check missed a keyword, the back-end would still refuse it."""
    with pytest.raises(GrammarError) as refused:
        backend().compile(constraint("json_schema", msgspec.json.encode({"items": {"not": {}}}).decode()))
    assert refused.value.path == ".items.not"


def test_looking_for_what_is_to_blame_has_an_end() -> None:
    now, num_trials = [0.0], [0]

    def is_bad(schema: dict[str, Any]) -> bool:
        num_trials[0] += 1
        now[0] += 0.25
        return True

    chain: dict[str, Any] = {}
    for _ in range(40):
        chain = {"items": chain}
    assert locate(chain, is_bad, lambda: now[0]) == ".items" * 4
    assert num_trials[0] == 4
