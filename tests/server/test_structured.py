"""Structured output over HTTP: every field, streamed and not, and refusals that name the place."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.engine.scripted import Script
from tests.server.harness import Server, write_plan

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"hello": {"type": "boolean"}, "world": {"enum": ["x", "yy"]}},
    "required": ["hello", "world"],
    "additionalProperties": False,
}
COMPACT = {"disable_any_whitespace": True}


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "greet"}], "max_tokens": 60}
    return http.post("/v1/chat/completions", json={**body, **fields})


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"model": "scripted", "prompt": "Say: ", "max_tokens": 60, **fields})


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("send", [chat, complete])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ],
    ids=["response_format", "guided_json", "guided_json text", "structured_outputs"],
)
def test_schemas_are_followed(http: httpx.Client, send: Any, fields: dict[str, Any]) -> None:
    compact = {"structured_outputs": {**fields.get("structured_outputs", {}), **COMPACT}}
    assert json.loads(text_of(send(http, **{**fields, **compact}))) == {"hello": False, "world": "x"}


def test_literals_are_kept_as_they_are(http: httpx.Client) -> None:
    """Each was answered with another literal, or ended the engine."""
    for literal in (-(2**63), 1234567890123456789, 2**64, "\u001b[0m", {"a": [2**53 + 1]}, "\x7f"):
        schema = {"type": "object", "properties": {"id": {"enum": [literal]}}, "required": ["id"]}
        for wish, answer in (
            ({"const": literal}, literal),
            ({**schema, "additionalProperties": False}, {"id": literal}),
        ):
            assert json.loads(text_of(complete(http, guided_json=wish, structured_outputs=COMPACT))) == answer


def test_references_and_bounds_as_generators_write_them(http: httpx.Client) -> None:
    """Pointers to generic types, encoded and not; the bounds that every protobuf schema has."""
    for pointer in ("Box%3Cstring%3E", "Box<string>"):
        schema = {"$ref": f"#/definitions/{pointer}", "definitions": {"Box<string>": {"enum": ["yes"]}}}
        assert text_of(complete(http, guided_json=schema)) == '"yes"'
    int64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    schema = {"type": "array", "items": int64, "minItems": 1, "maxItems": 1}
    answer = complete(http, guided_json=schema, structured_outputs=COMPACT, temperature=0)
    assert -(2**63) <= json.loads(text_of(answer))[0] < 2**63


def test_any_object_is_an_object(http: httpx.Client) -> None:
    fields = {"response_format": {"type": "json_object"}, "guided_decoding_backend": "guidance:disable-any-whitespace"}
    response = chat(http, **fields, temperature=0, logit_bias={str(2 + ord("}")): 90})
    assert isinstance(json.loads(text_of(response)), dict)


def test_regex_choice_and_grammars(http: httpx.Client) -> None:
    assert re.fullmatch("[a-c]{3}-hello", text_of(chat(http, guided_regex="[a-c]{3}-hello")))
    assert text_of(chat(http, guided_choice=["worlds", "hello"])) == "hello"
    assert text_of(complete(http, structured_outputs={"choice": ["worlds", "w"]})) in ("worlds", "w")
    assert re.fullmatch("x[0-9]{2}y", text_of(chat(http, guided_grammar='root ::= "x" [0-9]{2} "y"')))
    assert re.fullmatch("a(b|c)+", text_of(chat(http, guided_grammar='start: "a" TAIL\nTAIL: /[bc]{2}/')))


def test_structural_tags(http: httpx.Client) -> None:
    """The model says "hello", which is a trigger here."""
    content = {"type": "json_schema", "json_schema": SCHEMA}
    rules = {
        "type": "triggered_tags",
        "triggers": ["hello"],
        "tags": [{"begin": "hello=", "content": content, "end": "!"}],
        "at_least_one": True,
        "stop_after_first": True,
    }
    newer = {"type": "structural_tag", "format": rules}
    text = text_of(chat(http, response_format=newer, structured_outputs=COMPACT))
    assert text == 'hello={"hello":false,"world":"x"}!'
    older = {
        "type": "structural_tag",
        "triggers": ["hello"],
        "structures": [{"begin": "hello=", "schema": SCHEMA, "end": "!"}],
    }
    text = text_of(chat(http, response_format=older, structured_outputs=COMPACT, stop=["!"]))
    assert text == 'hello={"hello":false,"world":"x"}'


def test_streams_and_siblings_and_logprobs(client: openai.OpenAI) -> None:
    wish: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    extra = {"structured_outputs": COMPACT}
    pieces: dict[int, str] = {}
    stream = client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "greet"}],
        response_format=wish,
        n=2,
        stream=True,
        logprobs=True,
        extra_body=extra,
    )
    for chunk in stream:
        for choice in chunk.choices:
            pieces[choice.index] = pieces.get(choice.index, "") + (choice.delta.content or "")
    assert [json.loads(text) for text in pieces.values()] == [{"hello": False, "world": "x"}] * 2


def test_a_stop_string_cuts_a_constrained_answer(http: httpx.Client) -> None:
    assert text_of(chat(http, guided_json=SCHEMA, structured_outputs=COMPACT, stop=[","])) == '{"hello":false'


TAG = {"begin": "f", "schema": {}, "end": ""}
TITLED: dict[str, Any] = {"triggers": ["f"], "structures": [{**TAG, "schema": {"title": 5}}]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"properties": {"a": {"items": {"if": {}}}}}}, "guided_json.properties.a.items.if"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json.uniqueItems"),
    ({"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}}, "guided_json.$defs.a.not"),
    ({"guided_json": {"anyOf": [{}, {"type": "string", "format": "iri"}]}}, "guided_json.anyOf[1].format"),
    ({"guided_json": {"properties": {"a.b": {"pattern": "(?=a)b"}}}}, 'guided_json.properties["a.b"].pattern'),
    ({"guided_json": {"$ref": "https://example.com/schema"}}, "guided_json.$ref"),
    ({"guided_json": {"$ref": "#/$defs/none"}}, "guided_json.$ref"),
    ({"guided_json": {"allOf": [{}, {"enum": [1, 2**60 + 1]}]}}, "guided_json.allOf[1].enum[1]"),
    ({"guided_json": {"items": {"pattern": "^a\\x1b$"}}}, "guided_json.items.pattern"),
    ({"guided_json": {"type": "integer", "multipleOf": 2**31}}, "guided_json.multipleOf"),
    ({"guided_json": {"properties": {"a": {"title": 5}}}}, "guided_json.properties.a.title"),
    (
        {"response_format": {"type": "structural_tag", **TITLED}},
        "response_format.structures[0].schema.title",
    ),
    ({"guided_json": {"type": "integer", "minimum": 3, "maximum": 1}}, "guided_json.minimum"),
    ({"guided_json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "guided_json.oneOf"),
    ({"guided_json": {"type": "object", "minProperties": 2}}, "guided_json.minProperties"),
    ({"guided_json": {"x-guidance": {"lenient": True}}}, "guided_json.x-guidance"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_regex": "(("}, "guided_regex"),
    ({"guided_regex": "a" * 20_000}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
    ({"guided_grammar": "root ::= nowhere"}, "guided_grammar"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"guided_regex": "a", "guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
    ({"guided_regex": "a", "guided_decoding_backend": "guidance:no"}, "guided_decoding_backend"),
    ({"guided_json": {}, "guided_whitespace_pattern": "(("}, "guided_json"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"if": {}}}}},
        "response_format.json_schema.schema.if",
    ),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    (
        {"response_format": {"type": "structural_tag", "triggers": ["<"], "structures": [TAG]}},
        "response_format.structures[0].begin",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_what_cannot_be_is_refused_by_its_place(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    error = error_of(chat(http, **fields))
    assert error["param"] == param, error
    assert "Traceback" not in error["message"]


def test_a_refused_constraint_leaves_the_server_as_it_was(http: httpx.Client) -> None:
    before = text_of(complete(http, guided_choice=["hello"]))
    assert error_of(complete(http, guided_regex="(("))["param"] == "guided_regex"
    assert text_of(complete(http, guided_choice=["hello"])) == before


def test_large_and_deep_constraints_are_refused(http: httpx.Client) -> None:
    large = {"type": "object", "properties": {f"property {number}": {"type": "string"} for number in range(9000)}}
    assert error_of(chat(http, guided_json=large))["param"] == "guided_json"
    assert error_of(chat(http, guided_json=json.dumps(large)))["param"] == "guided_json"
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    assert "deep" in error_of(chat(http, guided_json=deep))["message"]
    assert error_of(chat(http, guided_json='{"items":' * 5000 + "{}" + "}" * 5000))["param"] == "guided_json"
    assert error_of(chat(http, guided_grammar="start: " + "(" * 5000))["param"] == "guided_grammar"


def test_a_server_may_be_without_structured_output(tmp_path: Path) -> None:
    path = write_plan(tmp_path, Script())
    plan = json.loads(path.read_bytes())
    plan["serving"]["structured"] = {"backend": None}
    path.write_text(json.dumps(plan))
    server = Server(path, tmp_path)
    try:
        server.wait_for("ready")
        with server.http() as http:
            error = error_of(chat(http, guided_choice=["a"]))
            assert (error["param"], error["code"]) == ("guided_choice", "unsupported_parameter")
            assert chat(http).status_code == 200
    finally:
        server.close()
