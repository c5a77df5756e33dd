"""Greedy answers are the same, byte for byte, beside requests that fail, go away, or mean harm: on a real socket."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest

from tests.e2e.served import CONTEXT, NAME, is_idle, make_random_model, serving
from tests.server.harness import Server, wait_until

LENGTH = 64
NUM_VICTIMS = 8
NUM_NEIGHBOURS = 6
SCHEMA = {"type": "array", "items": {"enum": ["person", "place"]}, "minItems": 3, "maxItems": 9}
TOO_COMPLEX = "start: " + " | ".join(f"r{i}" for i in range(3000)) + "".join(f'\nr{i}: "a{i}"' for i in range(3000))
TOOL = {"type": "function", "function": {"name": "now"}}

Body = dict[str, object]


def _prompt(number: int, **fields: object) -> Body:
    return {"model": NAME, "prompt": f"neighbour {number}: ", "max_tokens": 40, "temperature": 2.0, **fields}


# What a neighbour asks for, and the statuses that it may get.
NEIGHBOURS: dict[str, tuple[Callable[[int], Body], set[int]]] = {
    "constrained": (lambda n: _prompt(n, guided_json=SCHEMA, seed=n), {200}),
    "a new schema each": (lambda n: _prompt(n, guided_json={"const": f"{n} {'x' * (n % 50)}"}), {200}),
    "bad grammar": (lambda n: _prompt(n, guided_grammar=f"start: ({n}"), {400}),
    "bad schema": (lambda n: _prompt(n, guided_json={"type": "nonsense"}), {400}),
    "a grammar that fails on its way": (lambda n: _prompt(n, guided_grammar=TOO_COMPLEX), {200, 400}),
    "too long": (lambda n: _prompt(n, prompt="x" * (CONTEXT + n)), {400}),
    "as long as can be": (lambda n: _prompt(n, prompt="y" * (CONTEXT - 300) + str(n), max_tokens=4), {200}),
    "stop strings": (lambda n: _prompt(n, stop=["e", "a"], seed=n), {200}),
    "everything of sampling": (
        lambda n: _prompt(
            n, n=3, logprobs=5, top_k=7, min_p=0.1, repetition_penalty=1.9, presence_penalty=2.0,
            logit_bias={"70": -100.0, "71": 50.0}, bad_words=["a"], seed=n, prompt_logprobs=2,
        ),
        {200},
    ),
    "beams": (lambda n: _prompt(n, use_beam_search=True, n=4, temperature=0, max_tokens=6), {200}),
    "no vocabulary has it": (lambda n: _prompt(n, prompt=[10**6 + n]), {400}),
    "salts": (lambda n: _prompt(n, cache_salt="\u0000" * 100 + str(n)), {200, 400}),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    with serving(tmp_path_factory.mktemp("server"), folder) as running:
        yield running
        wait_until(lambda: is_idle(running), "the engine is not idle afterwards")


@pytest.fixture(scope="module")
def expected(server: Server) -> list[bytes]:
    """Every victim alone."""

    async def one_by_one() -> list[bytes]:
        async with _client(server) as http:
            return [await _victim(http, number, "alone") for number in range(NUM_VICTIMS)]

    found = asyncio.run(one_by_one())
    assert len(set(found)) == NUM_VICTIMS
    return found


def _client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=60.0, limits=httpx.Limits(max_connections=64))


async def _victim(http: httpx.AsyncClient, number: int, salt: str) -> bytes:
    """The bytes of one greedy answer's text; nothing in the cache is of use to it."""
    body: Body = {
        "model": NAME, "prompt": f"{number} victims: " + "abc" * number, "max_tokens": LENGTH, "temperature": 0,
        "ignore_eos": True, "cache_salt": salt,
    }  # fmt: skip
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text.encode()


def _beside(server: Server, salt: str, harm: Callable[[httpx.AsyncClient, int], Awaitable[None]]) -> list[bytes]:
    """The victims' answers, all at once, while neighbours do `harm` again and again until the last one is there."""

    async def run() -> list[bytes]:
        numbers = itertools.count()

        async def keep_on() -> None:
            while True:
                await harm(http, next(numbers))

        async with _client(server) as http:
            await harm(http, next(numbers))
            neighbours = [asyncio.create_task(keep_on()) for _ in range(NUM_NEIGHBOURS)]
            try:
                found = await asyncio.gather(*(_victim(http, number, salt) for number in range(NUM_VICTIMS)))
            finally:
                for neighbour in neighbours:
                    neighbour.cancel()
                ends = await asyncio.gather(*neighbours, return_exceptions=True)
            failed = [end for end in ends if not isinstance(end, asyncio.CancelledError)]
            assert not failed, failed[0]
            return found

    return asyncio.run(run())


@pytest.mark.parametrize("kind", NEIGHBOURS)
def test_beside_requests(server: Server, expected: list[bytes], kind: str) -> None:
    make, statuses = NEIGHBOURS[kind]

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        answer = await http.post("/v1/completions", json=make(number))
        assert answer.status_code in statuses, answer.text[:300]

    assert _beside(server, kind, ask) == expected


async def _leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):  # the server may have gone first
        await writer.wait_closed()


@pytest.mark.parametrize("num_events", [0, 3])
def test_beside_clients_that_go_away(server: Server, expected: list[bytes], num_events: int) -> None:
    """Before the first token, and in the middle of an answer, constrained and not."""

    async def give_up(http: httpx.AsyncClient, number: int) -> None:
        wish = {"guided_regex": "[a-z]{400}"} if number % 2 else {}
        body = _prompt(number, max_tokens=400, stream=True, ignore_eos=True, **wish)
        if num_events == 0:
            with_body = json.dumps(body).encode()
            _, writer = await asyncio.open_connection("127.0.0.1", int(str(http.base_url.port)))
            head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(with_body)}\r\n\r\n".encode() + with_body)
            await writer.drain()
            await _leave(writer)
            return
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            seen = 0
            async for _ in answer.aiter_lines():
                seen += 1
                if seen == num_events:
                    break

    assert _beside(server, f"gone {num_events}", give_up) == expected


def test_beside_calls_and_forms(server: Server, expected: list[bytes]) -> None:
    async def ask(http: httpx.AsyncClient, number: int) -> None:
        message = {"role": "user", "content": f"<|end|>{number}"}
        choice = ("required", {"type": "function", "function": {"name": "now"}}, "none")[number % 3]
        body = {"model": NAME, "messages": [message], "tools": [TOOL], "tool_choice": choice, "max_tokens": 30}
        answer = await http.post("/v1/chat/completions", json={**body, "response_format": {"type": "json_object"}})
        assert answer.status_code == 200, answer.text[:300]

    assert _beside(server, "calls", ask) == expected


def test_beside_what_is_no_request(server: Server, expected: list[bytes]) -> None:
    async def harm(http: httpx.AsyncClient, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(str(http.base_url.port)))
        writer.write((b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n" * 9)[number % 3])
        try:
            await writer.drain()
            writer.write_eof()
            await reader.read(1 << 16)
        except OSError:  # the server may have hung up on it already
            pass
        finally:
            await _leave(writer)

    assert _beside(server, "noise", harm) == expected
