"""Hostile constraints end within bounds of time and memory, and alone."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.engine.grammar.compiler import MAX_KEPT, GrammarCompiler
from appliance.engine.grammar.interface import GrammarError, MatcherError
from appliance.engine.grammar.schema import checked_schema
from appliance.engine.messages import Vocabulary

from .vocabulary import VOCAB
from .walks import backend, constraint, walk

SLOW_S = 20.0  # far above what any of these takes, so that a busy machine does not matter
DEEP = '{"items":' * 3000 + "{}" + "}" * 3000


def _next(number: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/d{number + 1}"}


HOSTILE: dict[str, tuple[str, str]] = {
    "counted twice": ("regex", "(a{1000}){1000}"),
    "counted five times": ("regex", "((((a{10}){10}){10}){10}){10}"),
    "the last but twenty": ("regex", "[ab]*a[ab]{20}c"),
    "many stars": ("regex", "(.*a.{20}){40}"),
    "starred stars": ("regex", "((a*)*)*b"),
    "classes": ("regex", r"(\p{L}\p{N}){200}"),
    "deep groups": ("regex", "(" * 3000 + "a" + ")" * 3000),
    "long": ("regex", "a" * 16_000),
    "many words": ("choice", json.dumps([f"word number {number}" for number in range(4000)])),
    "left recursion": ("lark", 'start: start "a" | "b"'),
    "no end": ("lark", "start: start"),
    "ambiguous": ("lark", 'start: s\ns: s s s | s s | "a"'),
    "empty loops": ("lark", 'start: a*\na: b*\nb: ""'),
    "wide": (
        "lark",
        "start: " + " | ".join(f"r{i}" for i in range(3000)) + "".join(f'\nr{i}: "a{i}"' for i in range(3000)),
    ),
    "deep": ("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
    "gbnf deep": ("gbnf", "root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
    "schema deep": ("json_schema", DEEP),
    "schema endless": ("json_schema", '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}'),
    "schema bottomless": ("json_schema", '{"type":"array","minItems":1,"items":{"$ref":"#"}}'),
    "schema product": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"required": [f"k{i}{j}"]} for j in range(5)]} for i in range(8)]}),
    ),
    "schema doubling": (
        "json_schema",
        json.dumps({"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"allOf": [_next(i), _next(i)]} for i in range(20)}}),
    ),
    "schema enum": ("json_schema", json.dumps({"enum": [f"value {number}" for number in range(10_000)]})),
    "schema counts": ("json_schema", '{"type":"array","minItems":100000,"items":{"type":"string","minLength":100000}}'),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_end(name: str) -> None:
    kind, source = HOSTILE[name]
    started = time.monotonic()
    with contextlib.suppress(GrammarError, MatcherError):
        walk(backend().compile(constraint(kind, source)), seed=1, most=60)
    assert time.monotonic() - started < SLOW_S


def test_a_large_schema_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(GrammarError):
        checked_schema({"properties": {f"p{number}": {"type": "string"} for number in range(40_000)}})


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def compiler() -> GrammarCompiler:
    made = GrammarCompiler(lambda vocabulary: backend())
    made.use(Vocabulary(tokenizer="{}", eos_token_ids=()))
    return made


def compiled(made: GrammarCompiler, source: str) -> Any:
    wish = constraint("json_schema", source)
    key = made.key(wish)
    running = made.begin(key, wish)
    running.result()
    return made.collect(key)


def test_ten_thousand_schemas_leave_memory_bounded() -> None:
    made, after_some = compiler(), 0
    for number in range(10_000):
        schema = {"type": "object", "properties": {f"name {number}": {"type": "string", "maxLength": number % 50}}}
        assert not isinstance(compiled(made, json.dumps(schema)), GrammarError)
        if number == 1000:
            after_some = resident_bytes()
    assert made.num_kept <= MAX_KEPT
    assert resident_bytes() - after_some < 40 << 20
    made.close()


def test_one_constraint_is_compiled_once_and_failures_are_kept() -> None:
    made = compiler()
    wish = constraint("regex", "((")
    key = made.key(wish)
    assert made.begin(key, wish) is made.begin(key, wish)
    made.begin(key, wish).result()
    outcome = made.collect(key)
    assert isinstance(outcome, GrammarError)
    assert made.kept(key) is outcome
    assert made.key(constraint("regex", "((")) == key != made.key(constraint("lark", "(("))
    made.close()


def test_a_matcher_that_becomes_too_complex_says_so_and_stays_so() -> None:
    grammar = backend().compile(constraint("lark", HOSTILE["wide"][1]))
    matcher, row = grammar.start(), np.zeros(-(-VOCAB // 32), np.uint32)
    with pytest.raises(MatcherError):
        matcher.consume([5, 5, 5])
    with pytest.raises(MatcherError):
        matcher.fill(row)
