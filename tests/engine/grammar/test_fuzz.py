"""Random constraints, hostile and not: each is refused or compiled, ends no process but its trial, and is enforced."""

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from appliance.engine.grammar.interface import GrammarError, MatcherError
from appliance.engine.grammar.sandbox.client import Sandbox
from appliance.engine.grammar.sandbox.wire import TrialLimits
from appliance.engine.grammar.schema import checked_schema
from appliance.engine.messages import Constraint

from .vocabulary import VOCAB
from .walks import backend, constraint, vocabulary, walk

NUM_SCHEMAS = 150
NUM_OTHERS = 80
NUMBERS = (
    0, 1, -1, 3, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, 0.5, 1e308, -1e308,
    5e-324, 1e-7, 1 / 3,
)  # fmt: skip
COUNTS = (0, 1, 2, 5, 2.0, 2**31 - 1, 2**31, 2**53 + 1, 2**64)
LITERALS = (
    *NUMBERS, "", "a", "\x1b", "\x00\x7f", 'quote"', "\u2028", True, None, [], {}, [2**60 + 1], {"\x1b": "\x1b"},
)  # fmt: skip
PATTERNS = (
    "^a+$", "a{2,3}", "^[^b]{1,2}$", "(a|b)*", "^.$", "a{1000000}", r"\x1b", "(", "^$", r"\d+\.\d", "a{4294967296}",
)  # fmt: skip
NAMES = ("a", "b", "$ref", "a b", "\x1b", "\u00fc")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox("guidance", VOCAB, TrialLimits(cpu_s=1))
    made.start(vocabulary())
    made.try_out(constraint("regex", "a"))
    yield made
    made.close()


def random_schema(draw: random.Random, depth: int = 0) -> Any:
    if depth > 3 or draw.random() < 0.05:
        return draw.random() < 0.9
    make = draw.choice((_literal, _number, _text, _array, _object, _choice, _reference))
    return make(draw, depth + 1)


def _some(draw: random.Random, **makers: Any) -> dict[str, Any]:
    return {word: make() for word, make in makers.items() if draw.random() < 0.45}


def _literal(draw: random.Random, depth: int) -> dict[str, Any]:
    if draw.random() < 0.5:
        return {"const": draw.choice(LITERALS)}
    return {"enum": draw.choices(LITERALS, k=draw.randrange(1, 4))}


def _number(draw: random.Random, depth: int) -> dict[str, Any]:
    words = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    bounds = {word: draw.choice(NUMBERS) for word in words if draw.random() < 0.3}
    return {"type": draw.choice(("integer", "number", ["integer", "null"])), **bounds}


def _text(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string"} | _some(
        draw,
        pattern=lambda: draw.choice(PATTERNS),
        minLength=lambda: draw.choice(COUNTS),
        maxLength=lambda: draw.choice(COUNTS),
    )


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "array"} | _some(
        draw,
        items=lambda: random_schema(draw, depth),
        prefixItems=lambda: [random_schema(draw, depth) for _ in range(draw.randrange(1, 3))],
        minItems=lambda: draw.choice(COUNTS[:4]),
        maxItems=lambda: draw.choice(COUNTS),
    )


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(NAMES, draw.randrange(0, 4))
    return {"type": "object"} | _some(
        draw,
        properties=lambda: {name: random_schema(draw, depth) for name in names},
        required=lambda: draw.sample(NAMES, draw.randrange(0, 3)),
        additionalProperties=lambda: random_schema(draw, depth),
        minProperties=lambda: draw.choice(COUNTS[:3]),
        maxProperties=lambda: draw.choice(COUNTS),
    )


def _choice(draw: random.Random, depth: int) -> dict[str, Any]:
    return {draw.choice(("anyOf", "allOf", "oneOf")): [random_schema(draw, depth) for _ in range(draw.randrange(1, 3))]}


def _reference(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"$ref": draw.choice(("#", "#/$defs/d", "#/$defs/e%20f", "#/$defs/none"))}


def schema_of(seed: int) -> Any:
    draw = random.Random(seed)
    schema = random_schema(draw)
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"d": random_schema(draw), "e f": random_schema(draw)}}
    return schema


def other_of(seed: int) -> Constraint:
    draw = random.Random(seed)
    make = draw.choice((_regex, _lark, _gbnf, _words))
    return make(draw)


def _regex(draw: random.Random) -> Constraint:
    parts = (
        "a",
        "b",
        "(",
        ")",
        "|",
        "*",
        "+",
        "?",
        "{3}",
        "{1,100000}",
        "[a-z]",
        "[^a]",
        ".",
        r"\w",
        r"\x1b",
        "(?i)",
        "^",
    )
    repeat = draw.choice((1, 1, 50, 1000))
    return constraint("regex", "".join(draw.choices(parts, k=draw.randrange(1, 12))) * repeat)


def _lark(draw: random.Random) -> Constraint:
    return constraint(
        "lark", _rules(draw, ":", "start", ('"a"', "/[ab]+/", "/.{3}/", '%json {"type": "null"}', "<[5]>"))
    )


def _gbnf(draw: random.Random) -> Constraint:
    return constraint("gbnf", _rules(draw, "::=", "root", ('"a"', "[ab]+", "[^a]", '"\\x41"')))


def _rules(draw: random.Random, arrow: str, first: str, leaves: tuple[str, ...]) -> str:
    count = draw.choice((2, 5, 20, 400, 1500))
    lines = []
    for number in range(count):
        following = [f"r{min(count - 1, number + draw.choice((1, 1, 2)))}", f"r{draw.randrange(count)}"]
        body = draw.choices([*leaves, *following, *following, "|", "*", "("], k=draw.randrange(1, 5))
        lines.append(f"r{number} {arrow} {' '.join(body)}")
    return "\n".join([f"{first} {arrow} r0", *lines, f"r{count - 1} {arrow} {leaves[0]}", ""])


def _words(draw: random.Random) -> Constraint:
    letters = 'ab\x00\x7f\n"\\\u00e9'
    words = ["".join(draw.choices(letters, k=draw.randrange(1, 400))) for _ in range(draw.choice((1, 50)))]
    return constraint("choice", json.dumps(words))


def passes(sandbox: Sandbox, wish: Constraint) -> str | None:
    try:
        return sandbox.try_out(wish).text
    except GrammarError as error:
        refused = str(error)
    assert 5 < len(refused) < 300
    return None


def test_random_schemas_are_kept_to(sandbox: Sandbox) -> None:
    assert sandbox._process is not None
    pid, num_passed, num_walked = sandbox._process.pid, 0, 0
    for seed in range(NUM_SCHEMAS):
        schema = schema_of(seed)
        try:
            ready = checked_schema(schema, additional_properties=seed % 2 == 0)
        except GrammarError:
            continue
        wish = constraint("json_schema", msgspec.json.encode(ready).decode(), whitespace="")
        if (text := passes(sandbox, wish)) is None:
            continue
        num_passed += 1
        num_walked += walks_fit(wish, text, schema, seed)
    assert num_passed > NUM_SCHEMAS / 5
    assert num_walked > num_passed
    assert sandbox._process.pid == pid


def walks_fit(wish: Constraint, text: str, schema: Any, seed: int) -> int:
    """Returns how many walks reached an end."""
    grammar, validator, ended = backend().compile(wish, text), jsonschema.Draft202012Validator(schema), 0
    for number in range(4):
        try:
            said = walk(grammar, number, most=150, calm=0.7)
        except MatcherError:
            continue
        if said is not None:
            ended += 1
            with contextlib.suppress(RecursionError):  # of the validator, where a schema is its own alternative
                assert not [*validator.iter_errors(json.loads(said))], (seed, schema, said)
    return ended


def test_random_grammars_end_nothing(sandbox: Sandbox) -> None:
    assert sandbox._process is not None
    pid, num_passed = sandbox._process.pid, 0
    for seed in range(NUM_OTHERS):
        wish = other_of(seed)
        if (text := passes(sandbox, wish)) is not None:
            num_passed += 1
            backend().compile(wish, text).rehearse()
    assert num_passed > NUM_OTHERS / 10
    assert sandbox._process.pid == pid
