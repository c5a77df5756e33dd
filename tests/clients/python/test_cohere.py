"""`cohere`: every type of embeddings by the second version of its API, and ranks by both."""

import base64
from typing import Any

import cohere
import numpy as np
import pytest
from served import KEY, MODEL, ROOT

TEXTS = ["a cat sleeps on the sofa", "stock markets fell on Monday", "how to bake bread"]
QUERY = "what do pets do all day"
KINDS: list[Any] = ["float", "int8", "uint8", "binary", "ubinary", "base64"]


@pytest.fixture
def second() -> cohere.ClientV2:
    return cohere.ClientV2(api_key=KEY, base_url=ROOT)


def test_every_type_of_embedding(second: cohere.ClientV2) -> None:
    found = second.embed(model=MODEL, texts=TEXTS, input_type="search_document", embedding_types=KINDS).embeddings
    floats = np.array(found.float_)
    assert floats.shape[0] == len(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(floats, axis=1), 1, atol=1e-5)
    words = [np.frombuffer(base64.b64decode(each), "<f4") for each in found.base64 or []]
    np.testing.assert_allclose(words, floats, rtol=1e-6)
    for numbers, shift in ((found.int8, 0), (found.uint8, 128)):
        restored = np.array(numbers, float) - shift
        assert ((restored * floats).sum(1) / np.linalg.norm(restored, axis=1)).min() > 0.999
    signs = np.unpackbits(np.array(found.ubinary, np.uint8), axis=1)
    assert signs.tolist() == (floats > 0).astype(int).tolist()
    assert (np.array(found.binary) + 128).tolist() == np.array(found.ubinary).tolist()


async def test_async(second: cohere.ClientV2) -> None:
    client = cohere.AsyncClientV2(api_key=KEY, base_url=ROOT)
    asked: dict[str, Any] = {"model": MODEL, "texts": TEXTS, "input_type": "search_query", "embedding_types": ["float"]}
    assert (await client.embed(**asked)).embeddings.float_ == second.embed(**asked).embeddings.float_


@pytest.mark.parametrize("version", [cohere.Client, cohere.ClientV2])
def test_ranks(version: Any) -> None:
    answer = version(api_key=KEY, base_url=ROOT).rerank(model=MODEL, query=QUERY, documents=TEXTS, top_n=2)
    assert len(answer.results) == 2
    assert answer.results[0].index == 0
    assert answer.results[0].relevance_score > answer.results[1].relevance_score


def test_a_refusal_is_the_clients_own(second: cohere.ClientV2) -> None:
    with pytest.raises(cohere.core.ApiError) as refused:
        second.embed(model="no-such-model", texts=TEXTS, input_type="search_query", embedding_types=["float"])
    assert refused.value.status_code == 404
