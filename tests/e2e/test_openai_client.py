"""The official client, strict about what it validates, against a real model: completions and chat."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.served import CONTEXT, NAME, is_idle, make_random_model, serving
from tests.server.harness import Server, chat_prompt, encode, wait_until

MESSAGES: list[Any] = [{"role": "user", "content": "Say something."}]
GREEDY = {"temperature": 0.0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    with serving(tmp_path_factory.mktemp("server"), folder) as running:
        yield running
        wait_until(lambda: is_idle(running), "the engine is not idle afterwards")


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture
def lenient(server: Server) -> Iterator[openai.OpenAI]:
    """The client's type of a completion chunk knows no null finish_reason, which OpenAI itself sends."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model=NAME, messages=MESSAGES, **options)


def complete(client: openai.OpenAI, prompt: Any = "Once upon", **options: Any) -> Any:
    return client.completions.create(model=NAME, prompt=prompt, **options)


def test_models(client: openai.OpenAI) -> None:
    [first, *_] = client.models.list().data
    assert first.id == NAME


def test_chat_is_completion_of_its_template(client: openai.OpenAI) -> None:
    answer = chat(client, **GREEDY)
    prompt = chat_prompt("Say something.")
    assert answer.choices[0].message.content == complete(client, prompt, **GREEDY).choices[0].text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(encode(prompt)), 24)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_streams_say_what_whole_answers_say(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    options = {**GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(chat(client, **options))
    assert chunks[-1].usage.completion_tokens == 24
    assert chunks[-1].choices == []
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "length"]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == chat(client, **GREEDY).choices[0].message.content

    parts = list(complete(lenient, **options))
    assert parts[-1].usage.completion_tokens == 24
    text = "".join(part.choices[0].text for part in parts[:-1])
    assert text == complete(client, **GREEDY).choices[0].text


def test_n_and_batches_of_prompts(client: openai.OpenAI) -> None:
    answer = complete(client, ["One", "Two"], n=3, seed=5, max_tokens=16)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({choice.text for choice in answer.choices}) == 6
    assert answer.usage.completion_tokens == 6 * 16
    texts = ["", "", ""]
    for chunk in chat(client, n=3, seed=5, max_tokens=16, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in chat(client, n=3, seed=5, max_tokens=16).choices]


def test_logprobs(client: openai.OpenAI) -> None:
    entries = chat(client, **GREEDY, logprobs=True, top_logprobs=4).choices[0].logprobs.content
    assert len(entries) == 24
    for entry in entries:
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0]  # greedy takes the most likely
        assert sum(map(math.exp, values)) <= 1.0 + 1e-5
    answer = complete(client, **GREEDY, logprobs=2).choices[0]
    assert "".join(answer.logprobs.tokens) == answer.text
    assert answer.logprobs.token_logprobs == [
        top[token] for token, top in zip(answer.logprobs.tokens, answer.logprobs.top_logprobs, strict=True)
    ]


def test_stop_strings_end_an_answer_before_them(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    whole = complete(client, **GREEDY).choices[0].text
    stop = whole[10:13]  # three tokens; streams must hold the first two back
    before = whole[: whole.index(stop)]
    answer = complete(client, **GREEDY, stop=["not in it", stop]).choices[0]
    assert (answer.text, answer.finish_reason) == (before, "stop")
    chunks = list(complete(lenient, **GREEDY, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == before
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_seed_fixes_the_text_whatever_runs_beside_it(async_client: openai.AsyncOpenAI) -> None:
    async def ask(seed: int | None, text: str = "Once upon") -> str:
        answer = await async_client.completions.create(
            model=NAME, prompt=text, max_tokens=32, temperature=1.0, top_p=0.95, seed=seed
        )
        return answer.choices[0].text

    alone = await ask(11)
    among = await asyncio.gather(
        *(ask(11 if each % 4 == 0 else None, f"Once upon{'!' * (each % 4)}") for each in range(16))
    )
    assert among[::4] == [alone] * 4
    assert await ask(12) != alone
    assert await ask(None) != await ask(None)


async def test_async_streams_at_once(async_client: openai.AsyncOpenAI) -> None:
    async def stream(number: int) -> tuple[str, str | None]:
        messages: list[Any] = [{"role": "user", "content": f"number {number}"}]
        text, reason = "", None
        chunks = await async_client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=8 + number, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        return text, reason

    outcomes = await asyncio.gather(*map(stream, range(40)))  # 32 run, 8 wait
    assert all(reason == "length" and text for text, reason in outcomes)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("n", {"n": 10**9}),
        ("n", {"extra_body": {"n": "many"}}),
        ("temperature", {"temperature": -1.0}),
        ("max_tokens", {"max_tokens": CONTEXT}),
        ("prompt", {"prompt": "x" * (CONTEXT + 1)}),
        ("prompt", {"prompt": []}),
        ("logit_bias", {"logit_bias": {"999999": 1}}),
    ],
)
def test_bad_requests_name_their_field(client: openai.OpenAI, field: str, change: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, **{"prompt": "x", **change})
    assert refused.value.param == field
    assert refused.value.type == "invalid_request_error"


def test_bad_messages_and_models(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="no-such", prompt="x")
    assert missing.value.param == "model"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model": "random", "prompt": "x", "temperature": NaN}', 400),
        (b'{"model": "random", "prompt": "x"', 400),
        (b"\xff\xfe" * 1000, 400),
        (b"[" * 100_000, 400),
        (b"x" * 10_000_000, 413),
    ],
    ids=["nan", "cut off", "bytes", "deep", "10 MB"],
)
def test_garbage_is_answered_in_the_same_shape(server: Server, body: bytes, status: int) -> None:
    with server.http() as http:
        try:
            answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        except httpx.WriteError:  # refused before all of it was sent
            assert status == 413
            return
    assert answer.status_code == status
    error = json.loads(answer.text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
