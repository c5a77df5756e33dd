"""`openai` and the embedders of `langchain`, on a model that embeds."""

import asyncio
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_openai import OpenAIEmbeddings
from served import BASE, KEY, MODEL, ROOT

TEXTS = ["a cat sleeps on the sofa", "stock markets fell on Monday", "how to bake bread"]
QUERY = "what do pets do all day"


def vectors(**given: Any) -> np.ndarray:
    client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    return np.array([each.embedding for each in client.embeddings.create(model=MODEL, **given).data])


def ids_of(text: str) -> list[int]:
    """The text's tokens without the special ones."""
    asked = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    answer = httpx.post(f"{ROOT}/tokenize", json=asked, headers={"Authorization": f"Bearer {KEY}"})
    found: list[int] = answer.raise_for_status().json()["tokens"]
    return found


def test_openai_asks_for_base64_and_for_numbers() -> None:
    packed, plain = vectors(input=TEXTS), vectors(input=TEXTS, encoding_format="float")
    assert packed.shape[0] == len(TEXTS)
    np.testing.assert_allclose(packed, plain, rtol=1e-6)
    assert np.argmax(plain @ vectors(input=QUERY)[0]) == 0


def test_openai_is_told_what_is_wrong() -> None:
    with pytest.raises(openai.BadRequestError, match="truncate_prompt_tokens"):
        vectors(input="word " * 20_000)


def test_langchain_gives_texts_where_it_counts_none_of_their_tokens() -> None:
    embedder = OpenAIEmbeddings(base_url=BASE, api_key=KEY, model=MODEL, check_embedding_ctx_length=False)
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), vectors(input=TEXTS), rtol=1e-6)
    found = asyncio.run(embedder.aembed_query(QUERY))
    np.testing.assert_allclose(found, vectors(input=QUERY)[0], rtol=1e-6)


def test_langchain_gives_token_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own vocabulary is OpenAI's, which no other model has: here it is given the served model's."""

    class Encoding:
        def encode_ordinary(self, text: str) -> list[int]:
            return ids_of(text)

        def encode(self, text: str, **_: Any) -> list[int]:
            return ids_of(text)

    monkeypatch.setattr("tiktoken.encoding_for_model", lambda _: Encoding())
    monkeypatch.setattr("tiktoken.get_encoding", lambda _: Encoding())
    embedder = OpenAIEmbeddings(base_url=BASE, api_key=KEY, model=MODEL)
    expected = vectors(input=TEXTS, extra_body={"add_special_tokens": False})
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), expected, atol=1e-5)


def test_langchain_cohere_embeds_and_ranks() -> None:
    embedder = CohereEmbeddings(base_url=ROOT, cohere_api_key=KEY, model=MODEL)
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), vectors(input=TEXTS), rtol=1e-5)
    [best, _] = CohereRerank(base_url=ROOT, cohere_api_key=KEY, model=MODEL, top_n=2).rerank(TEXTS, QUERY)
    assert best["index"] == 0
