"""Tests 30 to 36 of the list: hostile constraints are refused or bounded for every back-end, and affect no others."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.catalog.parsers import REASONING_PARSERS, TOOL_PARSERS
from appliance.engine.grammar.backends import BACKENDS
from appliance.engine.scripted import Script
from tests.security.surface import GENERATION, bytes_of, error_of, generation
from tests.server.harness import Server, running, says
from tests.text.tools.parsing import parse

MIB = 1 << 20
CONSTRAINED = [path for path in generation() if GENERATION[path].has_sampling]
REGEXES = {
    "nested stars": "(a+)+b", "ambiguous": "(a|aa)*$", "alternations": "|".join(f"word{n}" for n in range(1500)),
    "long repeat": ".{1,100000}", "nested repeats": "((a{1,100}){1,100}){1,100}", "back reference": r"(a)\1",
    "look-ahead": "(?=a)b", "unbalanced": "(", "huge class": "[" + "a-z" * 5000 + "]",
    "many optionals": "a?" * 3000 + "a" * 3000,
    "unicode": r"\p{L}{1,1000}", "nul": "\x00+", "deep": "(" * 2000 + "a" + ")" * 2000,
}  # fmt: skip


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


NODE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
SCHEMAS: dict[str, Any] = {
    "recursive": {"$ref": "#/$defs/a", "$defs": {"a": NODE}},
    "itself": {"$ref": "#"},
    "circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "remote": {"$ref": "http://127.0.0.1:9/schema.json"},
    "file": {"$ref": "file:///etc/passwd"},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10_000)}},
    "huge enum": {"enum": [f"value {n}" for n in range(50_000)]},
    "any of": {
        "anyOf": [{"anyOf": [{"type": "object", "properties": {f"{a}{b}": {}}} for b in range(30)]} for a in range(30)]
    },
    "min items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "max length": {"type": "string", "maxLength": 10**9, "pattern": "(a+)+b"},
    "patterns": {"type": "object", "patternProperties": {"(a+)+$": {"type": "integer"}}},
    "deep": deep(300),
    "not": {"not": {"type": "string"}},
    "unknown keyword": {"type": "object", "dependentSchemas": {"a": {"minProperties": 3}}},
    "nonsense": {"type": "nonsense"},
    "contradiction": {"type": "integer", "minimum": 5, "maximum": 1},
    "bounds": {"type": "number", "multipleOf": 1e-300},
}  # fmt: skip
EMPTY: dict[str, list[Any]] = {
    "guided_json": ["", {}, [], "{}"], "guided_regex": [""], "guided_choice": [[], [""]], "guided_grammar": [""],
    "response_format": [
        {}, {"type": "json_schema", "json_schema": {}}, {"type": "json_schema", "json_schema": {"schema": {}}},
    ],
}  # fmt: skip
HOSTILE_TEXT = [
    "<tool_call>" * 3000,
    '{"name": "' * 3000,
    "[" * 5000,
    '"' * 5001,
    "<think>" * 3000,
    "<|channel|>" * 2000,
]


GRAMMARS = {
    "Lark chain": "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(3000)) + '\nr3000: "a"\n',
    "GBNF chain": "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(2000)) + '\nr2000 ::= "a"\n',
    "a huge divisor": 'start: %json {"type": "integer", "multipleOf": 2147483648}\n',
}  # fmt: skip


def ask(http: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    body = {**GENERATION[path].body("greet"), GENERATION[path].max_tokens: 30, "temperature": 0, **fields}
    return http.post(path, json=body)


@pytest.fixture(autouse=True)
def the_engine_lives(open_server: Server) -> Any:
    pid = open_server.engine_pid()
    yield
    assert open_server.engine_pid() == pid
    with open_server.http() as http:
        answer = ask(http, "/v1/chat/completions").json()
    assert answer["choices"][0]["message"]["content"] == "hello world"


@pytest.mark.parametrize("path", CONSTRAINED)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_30_hostile_regexes(http: httpx.Client, path: str, backend: str) -> None:
    for name, regex in REGEXES.items():
        answer = ask(http, path, guided_regex=regex, guided_decoding_backend=backend)
        assert answer.status_code in (200, 400), (name, answer.text[:200])
        if answer.status_code == 400:
            error_of(answer)


@pytest.mark.parametrize("name", GRAMMARS)
def test_30_hostile_grammars(http: httpx.Client, name: str) -> None:
    """Each of these ends the process in which the library compiles it."""
    answer = ask(http, "/v1/chat/completions", guided_grammar=GRAMMARS[name])
    assert answer.status_code == 400, answer.text[:200]
    assert error_of(answer)["param"] == "guided_grammar"


@pytest.mark.parametrize("path", CONSTRAINED)
@pytest.mark.parametrize("name", SCHEMAS)
def test_31_hostile_schemas(http: httpx.Client, path: str, name: str) -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[name]}}
    for fields in ({"guided_json": SCHEMAS[name]}, {"response_format": wrapped}):
        answer = ask(http, path, **fields)
        assert answer.status_code in (200, 400), answer.text[:200]
        if answer.status_code == 400:
            error = error_of(answer)  # names the field, unless it grew too complex on the way
            assert error["param"] or "the constraint cannot be followed" in error["message"]
    if name in ("remote", "file", "nonsense"):
        assert answer.status_code == 400


def test_32_caches_of_grammars_are_bounded(open_server: Server, http: httpx.Client) -> None:
    """Many schemas, each of some size: memory stays where it was after the first hundred."""
    pids = open_server.process.pid, open_server.engine_pid()

    def compile_one(number: int) -> int:
        properties = {f"field_{number}_{place}": {"type": "string"} for place in range(20)}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return ask(http, "/v1/completions", guided_json=schema, max_tokens=1).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(compile_one, range(100))) == {200}
        before = [bytes_of(pid) for pid in pids]
        assert set(pool.map(compile_one, range(100, 700))) == {200}
    grown = [bytes_of(pid) - size for pid, size in zip(pids, before, strict=True)]
    assert max(grown) < 64 * MIB, grown


def test_33_a_failing_constraint_hurts_no_neighbour(http: httpx.Client) -> None:
    bad: list[dict[str, Any]] = [
        {"guided_regex": "("}, {"guided_json": {"type": "nonsense"}}, {"guided_grammar": "start: ("},
        {"guided_choice": []}, {"guided_regex": "(a{1,100}){1,100}"}, {"response_format": {"type": "json_schema"}},
    ]  # fmt: skip

    def one(number: int) -> str:
        if number % 2:
            ask(http, "/v1/chat/completions", **bad[number % len(bad)])
            return ""
        body = GENERATION["/v1/chat/completions"].body("neighbour")
        answer = http.post("/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 60})
        return str(answer.json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(one, range(100)))
    assert set(texts[::2]) == {"one two three four five"}


def test_34_constraints_with_everything_else(tmp_path: Path) -> None:
    """A cached prefix, a prompt in chunks, several sequences, streams: always valid."""
    schema = {
        "type": "object",
        "properties": {"hello": {"type": "boolean"}},
        "required": ["hello"],
        "additionalProperties": False,
    }
    strict = {"structured_outputs": {"json": schema, "disable_any_whitespace": True}, "n": 3, "max_tokens": 60}
    plan = {"max_num_batched_tokens": 16, "prefix_caching": True}
    with running(tmp_path, Script(replies=[says("greet", "hello")]), **plan) as server, server.http() as http:
        for text in ("greet", "a long message of many tokens, in several chunks, asked twice " * 3):
            for _ in range(2):
                body = {**GENERATION["/v1/chat/completions"].body(text), **strict}
                answer = http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                choices = answer.json()["choices"]
                assert [set(json.loads(choice["message"]["content"])) for choice in choices] == [{"hello"}] * 3


@pytest.mark.parametrize("path", CONSTRAINED)
@pytest.mark.parametrize("field", EMPTY)
def test_35_empty_constraints_are_defined(http: httpx.Client, path: str, field: str) -> None:
    for value in EMPTY[field]:
        answer = ask(http, path, **{field: value})
        assert answer.status_code in (200, 400), answer.text[:200]
        if answer.status_code == 400:
            assert field in str(error_of(answer))


@pytest.mark.parametrize("name", [parser.name for parser in TOOL_PARSERS])
def test_36_parsers_bear_hostile_text(name: str) -> None:
    """Whole and cut texts give the same events; tests/text/tools/test_work counts the work."""
    for text in HOSTILE_TEXT:
        pieces = [text[start : start + 997] for start in range(0, len(text), 997)]
        assert joined(parse(name, [text])) == joined(parse(name, pieces))


def joined(events: list[Any]) -> str:
    return "".join(
        f"{type(event).__name__[0]}{getattr(event, 'text', getattr(event, 'arguments', ''))}" for event in events
    )


def test_36_reasoning_parsers_are_in_the_same_table() -> None:
    assert len(REASONING_PARSERS) >= 8
