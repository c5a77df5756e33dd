"""Structured output of a real model with random weights, over HTTP, many at once: nothing leaves its form."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.served import NAME, is_idle, make_random_model, serving
from tests.server.harness import Server, wait_until

ASK: list[Any] = [{"role": "user", "content": "Say something."}]
HOT: dict[str, Any] = {"temperature": 2.0, "max_tokens": 150}
COMPACT = {"disable_any_whitespace": True}
KIND = {"enum": ["person", "place", "thing"]}
SCHEMAS: dict[str, Any] = {
    "flat": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": KIND},
        "required": ["n", "kind"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": KIND, "minItems": 2, "maxItems": 4},
    "date": {"type": "string", "format": "date"},
    "either": {"anyOf": [KIND, {"type": "integer", "minimum": -5, "maximum": 5}]},
    "tree": {
        "type": "object",
        "properties": {"kind": KIND, "below": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
        "required": ["kind"],
        "additionalProperties": False,
    },
}


class Thing(BaseModel):
    name: str = Field(max_length=6)
    kind: Literal["person", "place"]
    counts: list[int] = Field(max_length=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    with serving(tmp_path_factory.mktemp("server"), folder) as running:
        yield running
        wait_until(lambda: is_idle(running), "the engine is not idle afterwards")


def asking(client: openai.AsyncOpenAI, schema: Any, seed: int, **fields: Any) -> Any:
    wish: Any = {"type": "json_schema", "json_schema": {"name": "wish", "schema": schema, "strict": True}}
    extra = {"structured_outputs": COMPACT}
    return client.chat.completions.create(
        model=NAME, messages=ASK, response_format=wish, seed=seed, extra_body=extra, **HOT, **fields
    )


async def test_many_at_once_keep_to_their_schemas(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        wanted = [(name, schema, seed) for seed in range(4) for name, schema in SCHEMAS.items()]
        answers = await asyncio.gather(*(asking(client, schema, seed, n=2) for _, schema, seed in wanted))
    ended = 0
    for (_, schema, _), answer in zip(wanted, answers, strict=True):
        for choice in answer.choices:
            if choice.finish_reason == "stop":
                ended += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(choice.message.content))
    assert ended > len(wanted)


async def test_a_stream_is_the_answer_in_pieces(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = await asking(client, SCHEMAS["flat"], 7)
        stream = await asking(client, SCHEMAS["flat"], 7, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content
    assert json.loads("".join(pieces)).keys() == {"n", "kind"}


def test_the_client_parses_into_its_own_types(server: Server) -> None:
    with server.openai() as client:
        for seed in range(20):
            extra = {"structured_outputs": COMPACT}
            try:
                answer = client.chat.completions.parse(
                    model=NAME, messages=ASK, response_format=Thing, seed=seed, extra_body=extra, **HOT
                )
            except openai.LengthFinishReasonError:
                continue
            assert isinstance(answer.choices[0].message.parsed, Thing)
            return
    raise AssertionError("no answer came to its end")


def test_regexes_and_choices(server: Server) -> None:
    with server.openai() as client:
        for seed in range(4):
            wish: dict[str, Any] = {"guided_regex": r"[a-f]{2}-\d{3}"}
            answer = client.completions.create(model=NAME, prompt="x", seed=seed, extra_body=wish, **HOT)
            assert re.fullmatch(r"[a-f]{2}-\d{3}", answer.choices[0].text)
            wish = {"guided_choice": ["left", "right", "straight on"]}
            answer = client.completions.create(model=NAME, prompt="x", seed=seed, extra_body=wish, **HOT)
            assert answer.choices[0].text in wish["guided_choice"]
