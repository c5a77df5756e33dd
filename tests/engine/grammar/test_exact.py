"""Literals and bounds that the back-end would change are kept exactly, or refused with their place."""

import json
import random
import re
from fractions import Fraction
from typing import Any

import jsonschema
import pytest

from appliance.engine.grammar.interface import GrammarError, MatcherError
from appliance.engine.grammar.numbers import decimals_from, decimals_to, integers_from, integers_to
from appliance.engine.grammar.schema import checked_schema

from .vocabulary import FIRST_BYTE
from .walks import json_grammar, walk

BIG = 1234567890123456789
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
NEVER = {"additionalProperties": False}
LITERALS: list[Any] = [
    -(2**63), 2**63, 2**53 + 1, -(2**53) - 1, BIG, 10**30, -(10**300), 2**31, 2**53, 0.1, 1 / 3, 1e22, 1e308, 5e-324,
    -0.0, *(f"a{chr(code)}b" for code in (*range(0x20), 0x7F, 0x9F, 0x2028, 0xFFFF)), "\x1b[0m", [BIG, "\x00"],
    {"a": [BIG, {"\x1b": "\x7f"}], "c": {}},
]  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "int64": INT64,
    "uint64": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    "int64 or null": {**INT64, "type": ["integer", "null"]},
    "int64 as protobuf has it": {
        "anyOf": [
            {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**63},
            {"type": "string", "pattern": "^-?[0-9]+$"},
        ]
    },
    "double": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    "float and more": {"type": "number", "exclusiveMinimum": 0.25, "maximum": 3.4028234663852886e38},
    "one side": {"type": "integer", "minimum": 10**18},
    "the other side": {"type": "number", "exclusiveMaximum": -(10**19)},
    "any type": {"minimum": 2**60},
    "a closed object": {
        "type": "object",
        "properties": {"a": INT64, "b": {"type": "string", "maxLength": 4}, "c": {"items": INT64, "maxItems": 3}},
        **NEVER,
    },
    "an open object": {
        "type": "object",
        "properties": {"a": INT64, "b": {"type": "null"}},
        "required": ["b", "d"],
        "additionalProperties": {"type": "boolean"},
    },
    "a tree": {
        "type": "object",
        "properties": {"v": INT64, "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
        "required": ["v"],
        **NEVER,
    },
    "a tuple": {"type": "array", "prefixItems": [INT64, {"type": "boolean"}], "items": False, "minItems": 1},
    "a tuple and more": {"type": "array", "prefixItems": [INT64], "items": {"type": "null"}, "minItems": 2},
    "some": {"type": "array", "items": INT64, "minItems": 2, "maxItems": 3},
    "at most one": {"type": "array", "items": INT64, "maxItems": 1},
    "none": {"type": "array", "items": INT64, "maxItems": 0},
    "few of a tuple": {"type": "array", "prefixItems": [INT64, INT64], "maxItems": 1},
    "one of": {"oneOf": [INT64, {"type": "null"}]},
    "defined": {
        "$ref": "#/$defs/x",
        "$defs": {
            "x": {"type": "object", "properties": {"n": INT64, "m": {"$ref": "#/$defs/y"}}, "required": ["m"], **NEVER},
            "y": {"enum": [BIG, "\x1b", None]},
        },
    },
    "listed with a type": {"enum": [BIG, "a", 1.5, 2.0], "type": ["integer", "string"]},
}


@pytest.mark.parametrize("literal", LITERALS, ids=lambda literal: repr(literal)[:30])
def test_a_literal_is_said_as_it_is(literal: Any) -> None:
    for schema, answer in (
        ({"const": literal}, literal),
        ({"enum": [literal]}, literal),
        ({"type": "object", "properties": {"v": {"const": literal}}, "required": ["v"], **NEVER}, {"v": literal}),
    ):
        said = walk(json_grammar(schema), seed=1, most=1000)
        assert said is not None
        assert json.loads(said) == answer


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("whitespace", ["", None])
def test_walks_satisfy_the_schema(name: str, whitespace: str | None) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    grammar = json_grammar(SCHEMAS[name], whitespace)
    said = [text for seed in range(25) if (text := walk(grammar, seed, calm=0.4)) is not None]
    assert len(said) > 15
    for text in said:
        assert not list(validator.iter_errors(json.loads(text))), text


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("int64", [str(-(2**63)), str(2**63 - 1), "0", "-1"], [str(-(2**63) - 1), str(2**63), "1e3", "01", "-0"]),
        ("uint64", [str(2**64 - 1)], [str(2**64), "-1"]),
        ("double", ["1.5", "-0.25"], ["1e999"]),
        ("float and more", ["0.2500001", "340282346638528860000000000000000000000"], ["0.25", "0.2", "34" + "9" * 37]),
        ("one side", [str(10**18), str(10**30)], [str(10**18 - 1)]),
        ("an open object", ['{"b":null,"d":true,"x":false}'], ['{"b":null,"d":1}', '{"b":null,"d":true,"a":true}']),
        ("at most one", ["[]", "[1]"], ["[1,2]"]),
        ("few of a tuple", ["[]", "[1]"], ["[1,2]"]),
        ("a tuple and more", ["[1,null]", "[1,null,null]"], ["[1]", "[1,2]"]),
        ("listed with a type", [str(BIG), '"a"', "2.0"], ["1.5"]),
    ],
)
def test_what_is_accepted(name: str, accepted: list[str], refused: list[str]) -> None:
    grammar = json_grammar(SCHEMAS[name])
    assert [follows(grammar, text) for text in accepted] == [True] * len(accepted)
    assert [follows(grammar, text) for text in refused] == [False] * len(refused)


def follows(grammar: Any, text: str) -> bool:
    matcher = grammar.start()
    try:
        matcher.consume([FIRST_BYTE + byte for byte in text.encode()])
    except MatcherError:
        return False
    return bool(matcher.is_accepting)


REFUSED: list[tuple[Any, str]] = [
    ({"allOf": [{"const": BIG}, {"type": "integer"}]}, ".allOf[0].const"),
    ({"properties": {"a": {"enum": [1, BIG]}}, "minProperties": 1}, ".properties.a.enum[1]"),
    ({**INT64, "multipleOf": 2}, ".minimum"),
    ({"const": BIG, "minimum": 3}, ".const"),
    ({"type": "array", "items": INT64, "minItems": 2, "maxItems": 1}, ".items.minimum"),
    ({"const": BIG, "type": "string"}, ".const"),
    ({"oneOf": [{"const": BIG}, {"const": 2}]}, ".oneOf[0].const"),
    ({"items": {"type": "integer", "minimum": 2**70, "maximum": 3}}, ".items.minimum"),
    ({"type": "number", "minimum": 1e-300}, ".minimum"),
    ({"minimum": 10**400}, ".minimum"),
    ({"pattern": "^a\x1bb$"}, ".pattern"),
    ({"pattern": r"^a\x1bb$"}, ".pattern"),
    ({"pattern": r"^a[\u001b]b$"}, ".pattern"),
    ({"patternProperties": {r"^a\u0007": {}}}, r'.patternProperties["^a\u0007"]'),
    ({"type": "array", "minItems": 2**31}, ".minItems"),
    ({"multipleOf": 100_003}, ".multipleOf"),
    ({"multipleOf": 0}, ".multipleOf"),
    ({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}, ".allOf[1].multipleOf"),
    ({"properties": {"a": {"$id": "x", "$ref": "#/properties/b"}, "b": {}}}, ".properties.a.$id"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path"), REFUSED, ids=[f"{number}{each[1]}" for number, each in enumerate(REFUSED)])
def test_what_cannot_be_kept_is_refused_with_its_place(schema: Any, path: str) -> None:
    with pytest.raises(GrammarError) as refused:
        checked_schema(schema)
    assert refused.value.path == path


@pytest.mark.parametrize("pattern", [r"^[^\x00-\x1f]{2}$", r"^a\tb$", r"^[\x00-\x7f]{3}$", r"^\x41[\x1b-a]$"])
def test_other_patterns_pass(pattern: str) -> None:
    said = walk(json_grammar({"type": "string", "pattern": pattern}), seed=2)
    assert said is not None
    assert re.fullmatch(pattern, json.loads(said))


def test_a_bound_that_nothing_can_pass_is_none() -> None:
    assert checked_schema({"maxLength": 2**40, "minLength": 2.0}) == {"minLength": 2}


POINTERS = ["Box<string>", "a/b", "a~b", "a%b", "\u00fc", "a b", "", "a%20b", "a#b", "a?b", "0", "~1", 'q"']


@pytest.mark.parametrize("name", POINTERS)
def test_pointers_are_read_as_the_standard_has_them(name: str) -> None:
    from urllib.parse import quote

    escaped = name.replace("~", "~0").replace("/", "~1")
    for pointer in {escaped, quote(escaped), quote(escaped, safe="")}:
        if pointer == "a%20b" and name == "a b":
            continue
        schema = {"$ref": f"#/definitions/{pointer}", "definitions": {name: {"const": "here"}, "other": {}}}
        assert walk(json_grammar(schema), 0) == b'"here"', pointer


@pytest.mark.parametrize(
    "reference", ["#/definitions/a/", "#/definitions//a", "#/definitions/~2", "#/enum/1", "#/enum/\u0661"]
)
def test_pointers_that_lead_nowhere(reference: str) -> None:
    with pytest.raises(GrammarError) as refused:
        checked_schema({"properties": {"p": {"$ref": reference}}, "definitions": {"a": {}}, "enum": [{}]})
    assert refused.value.path == ".properties.p.$ref"


def test_ranges_of_integers() -> None:
    draw = random.Random(1)
    bounds = [
        0,
        1,
        -1,
        9,
        10,
        -10,
        2**63,
        -(2**63),
        *(draw.choice((-1, 1)) * draw.randrange(10**size) for size in (2, 5, 20, 40) for _ in range(60)),
    ]
    for bound in bounds:
        least, most = re.compile(integers_from(bound)), re.compile(integers_to(bound))
        near = [bound + draw.randrange(-1000, 1000) for _ in range(6)]
        for number in (bound - 1, bound, bound + 1, 0, -bound, bound * 10, bound // 10, *near):
            assert bool(least.fullmatch(str(number))) == (number >= bound), (bound, number)
            assert bool(most.fullmatch(str(number))) == (number <= bound), (bound, number)


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_ranges_of_decimals(is_exclusive: bool) -> None:
    draw = random.Random(2)
    for _ in range(400):
        decimals, size = draw.randrange(4), draw.choice((0, 1, 10, 10**20))
        scale = 10**decimals
        bound = Fraction(draw.randrange(-size * scale - 5, size * scale + 6), scale)
        least = re.compile(decimals_from(bound, is_exclusive=is_exclusive))
        most = re.compile(decimals_to(bound, is_exclusive=is_exclusive))
        for places in range(decimals, decimals + 3):
            step = Fraction(draw.choice((-11, -1, 0, 0, 1, 7, draw.randrange(-3 * scale, 3 * scale + 1))), 10**places)
            number = bound + step
            text = written(number, places)
            assert bool(least.fullmatch(text)) == (number > bound if is_exclusive else number >= bound), (bound, text)
            assert bool(most.fullmatch(text)) == (number < bound if is_exclusive else number <= bound), (bound, text)


def written(number: Fraction, places: int) -> str:
    digits = str(abs(number) * 10**places // 1).rjust(places + 1, "0")
    whole = digits[: len(digits) - places]
    return ("-" if number < 0 else "") + whole + (f".{digits[len(digits) - places :]}" if places else "")
