"""A greedy answer is the same whatever runs beside it, however its prompt is cut, wherever its prefix comes from."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.served import NAME, figures, is_idle, make_random_model, serving
from tests.server.harness import Server, encode, wait_until

LENGTH = 48
SHARED = "The quick brown fox jumps over the lazy dog. "
PROMPTS = [SHARED * (number % 4) + f"{number}: " + "abcdefghij"[number % 10] * (7 * number) for number in range(16)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_random_model(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), model) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: Server) -> list[str]:
    """Every prompt alone, with nothing in the cache for it."""
    return answers(server, "alone", together=1)


def answers(server: Server, salt: str, *, together: int) -> list[str]:
    """The text of every prompt; `together` at a time. Only requests of one salt share cached blocks."""

    async def ask_all() -> list[str]:
        places = asyncio.Semaphore(together)

        async def ask(client: openai.AsyncOpenAI, number: int, prompt: str) -> str:
            async with places:
                answer = await client.completions.create(
                    model=NAME, prompt=prompt, max_tokens=LENGTH, temperature=0.0,
                    extra_body={"ignore_eos": True, "cache_salt": f"{salt}-{number}"},
                )  # fmt: skip
            assert answer.usage is not None
            assert answer.usage.completion_tokens == LENGTH
            return answer.choices[0].text

        async with async_client(server) as client:
            return await asyncio.gather(*(ask(client, number, prompt) for number, prompt in enumerate(PROMPTS)))

    return asyncio.run(ask_all())


def async_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


def test_in_a_batch(server: Server, expected: list[str]) -> None:
    assert len(set(expected)) == len(PROMPTS)
    assert answers(server, "batch", together=16) == expected


def test_from_a_cached_prefix(server: Server, expected: list[str]) -> None:
    hits = figures(server)["prefix_cache_hits_total"]
    assert answers(server, "alone", together=1) == expected
    assert answers(server, "alone", together=16) == expected
    whole_blocks = sum((len(encode(prompt)) - 1) // 16 * 16 for prompt in PROMPTS)
    assert figures(server)["prefix_cache_hits_total"] >= hits + 2 * whole_blocks


def test_cut_into_chunks_and_preempted(tmp_path: Path, model: Path, expected: list[str]) -> None:
    """Steps of 20 tokens, and 20 blocks, where the longest request alone needs 18."""
    small = ("max_num_batched_tokens=20", "max_num_seqs=16", "chunked_prefill=true")
    settings = [f"scheduler.{each}" for each in small]
    cache = ["cache.num_blocks=20", "cache.prefix_caching=false", "model.max_model_len=320"]
    with serving(tmp_path, model, *settings, *cache) as server:
        assert answers(server, "chunked", together=1) == expected
        assert figures(server)["preemptions_total"] == 0
        assert answers(server, "preempted", together=16) == expected
        assert figures(server)["preemptions_total"] > 0
        assert figures(server)["prefix_cache_hits_total"] == 0
        wait_until(lambda: is_idle(server), "blocks are in use afterwards")
