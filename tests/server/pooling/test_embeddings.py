"""/v1/embeddings, /pooling and /v2/embed."""

import base64
from collections.abc import Callable
from typing import Literal

import numpy as np
import openai
import pytest
import torch
from openai.types import CreateEmbeddingResponse

from tests.server.pooling.conftest import Served

TEXT, OTHER = "the cat sat on a mat", "dog ran far away"


def ids_of(served: Served, text: str) -> list[int]:
    found: list[int] = served.ok("/tokenize", prompt=text)["tokens"]
    return found


def by_torch(served: Served, token_ids: list[int]) -> np.ndarray:
    """What sentence-transformers makes of a text: the mean of the last layer's rows, of length 1."""
    with torch.inference_mode():
        rows = served.oracle(torch.tensor([token_ids])).last_hidden_state[0]
    mean = rows.mean(0).numpy()
    return np.asarray(mean / np.linalg.norm(mean))


def test_embeddings_are_those_of_transformers(embedder: Served) -> None:
    answer = embedder.ok("/v1/embeddings", input=[TEXT, OTHER], model="pooled")
    assert [each["index"] for each in answer["data"]] == [0, 1]
    for text, each in zip((TEXT, OTHER), answer["data"], strict=True):
        expected = by_torch(embedder, ids_of(embedder, text))
        assert float(np.dot(each["embedding"], expected)) > 0.99999
    assert answer["usage"]["prompt_tokens"] == len(ids_of(embedder, TEXT)) + len(ids_of(embedder, OTHER))


def test_every_form_of_an_input_gives_the_same_vector(embedder: Served) -> None:
    token_ids = ids_of(embedder, TEXT)
    given = [TEXT, [TEXT], token_ids, [token_ids]]
    found = [embedder.ok("/v1/embeddings", input=each)["data"][0]["embedding"] for each in given]
    assert found[1:] == found[:-1]


def test_base64_is_the_same_numbers(embedder: Served) -> None:
    numbers = embedder.ok("/v1/embeddings", input=TEXT)["data"][0]["embedding"]
    text = embedder.ok("/v1/embeddings", input=TEXT, encoding_format="base64")["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == pytest.approx(numbers, rel=1e-7)


def test_many_inputs_of_one_request_run_together(embedder: Served) -> None:
    texts = [f"{TEXT} {OTHER}"[: 4 + at] for at in range(30)]
    together = [each["embedding"] for each in embedder.ok("/v1/embeddings", input=texts)["data"]]
    alone = [embedder.ok("/v1/embeddings", input=text)["data"][0]["embedding"] for text in texts[::7]]
    np.testing.assert_allclose(together[::7], alone, atol=1e-5)


def test_a_long_input_is_refused_or_cut_at_its_end(embedder: Served) -> None:
    long = "the cat " * 500
    error = embedder.refusal("/v1/embeddings", input=long)
    assert error["code"] == "context_length_exceeded"
    assert "truncate_prompt_tokens" in error["message"]
    cut = embedder.ok("/v1/embeddings", input=long, truncate_prompt_tokens=8)
    assert cut["usage"]["prompt_tokens"] == 8
    expected = by_torch(embedder, [*ids_of(embedder, "the cat " * 3)])
    assert float(np.dot(cut["data"][0]["embedding"], expected)) > 0.99999
    assert embedder.ok("/v1/embeddings", input=long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 66


def test_special_tokens_may_be_left_out(embedder: Served) -> None:
    bare = ids_of(embedder, TEXT)[1:-1]
    answer = embedder.ok("/v1/embeddings", input=TEXT, add_special_tokens=False)
    assert answer["usage"]["prompt_tokens"] == len(bare)
    assert answer["data"] == embedder.ok("/v1/embeddings", input=bare)["data"]
    assert answer["data"] != embedder.ok("/v1/embeddings", input=TEXT)["data"]


def test_vectors_are_not_cut_where_the_model_was_not_trained_for_it(
    embedder: Served, serve: Callable[..., Served]
) -> None:
    error = embedder.refusal("/v1/embeddings", input=TEXT, dimensions=16)
    assert error["param"] == "dimensions"
    assert "matryoshka_dimensions" in error["message"]
    trained = serve("bert-mean", "override_pooler_config: {matryoshka_dimensions: [16, 32]}")
    whole = trained.ok("/v1/embeddings", input=TEXT, normalize=False)["data"][0]["embedding"]
    short = trained.ok("/v1/embeddings", input=TEXT, dimensions=16)["data"][0]["embedding"]
    assert short == pytest.approx(np.array(whole[:16]) / np.linalg.norm(whole[:16]), rel=1e-5)
    assert "16, 32" in trained.refusal("/v1/embeddings", input=TEXT, dimensions=20)["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [TEXT, 3]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [4096]}, "prompt"),
        ({"input": [5, 6], "add_special_tokens": True}, "add_special_tokens"),
        ({"input": TEXT, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": TEXT, "prompt_name": "song"}, "prompt_name"),
        ({"input": TEXT, "temperature": 1}, "temperature"),
        ({"input": TEXT, "priority": 3}, "priority"),
        ({"messages": [{"role": "user", "content": "cat"}]}, "messages"),
    ],
)
def test_what_is_wrong_is_named(embedder: Served, body: dict[str, object], param: str) -> None:
    assert embedder.refusal("/v1/embeddings", **body)["param"] == param


def test_pooling_answers_a_vector_or_one_of_each_token(embedder: Served, serve: Callable[..., Served]) -> None:
    vector = embedder.ok("/pooling", input=TEXT, task="embed")["data"][0]["data"]
    assert vector == embedder.ok("/v1/embeddings", input=TEXT)["data"][0]["embedding"]
    assert "embed" in embedder.refusal("/pooling", input=TEXT, task="classify")["message"]
    tokens = serve("bert-all", "override_pooler_config: {pooling_type: ALL}")
    rows = tokens.ok("/pooling", input=TEXT)["data"][0]["data"]
    token_ids = ids_of(tokens, TEXT)
    with torch.inference_mode():
        expected = tokens.oracle(torch.tensor([token_ids])).last_hidden_state[0]
    assert len(rows) == len(token_ids)
    np.testing.assert_allclose(rows, torch.nn.functional.normalize(expected, dim=-1).numpy(), atol=1e-3)
    assert "/pooling" in tokens.refusal("/v1/embeddings", input=TEXT)["message"]


def test_cohere_gives_every_type_after_the_prompt_of_the_input_type(embedder: Served) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = embedder.ok(
        "/v2/embed", model="pooled", texts=[TEXT, OTHER], input_type="search_query", embedding_types=kinds
    )
    found = {kind: np.array(answer["embeddings"][kind]) for kind in kinds[:-1]}
    vectors = found["float"]
    assert vectors.shape == (2, 48)
    prompted = embedder.ok("/v1/embeddings", input=f"who is {TEXT}")["data"][0]["embedding"]
    assert vectors[0] == pytest.approx(prompted)
    for kind, shift in (("int8", 0), ("uint8", 128)):
        restored = found[kind].astype(float) - shift
        likeness = (restored * vectors).sum(-1) / np.linalg.norm(restored, axis=-1)
        assert likeness.min() > 0.999
    assert np.unpackbits(found["ubinary"].astype(np.uint8), axis=-1).tolist() == (vectors > 0).astype(int).tolist()
    assert (found["ubinary"] - 128).tolist() == found["binary"].tolist()
    words = [np.frombuffer(base64.b64decode(each), "<f4") for each in answer["embeddings"]["base64"]]
    np.testing.assert_allclose(words, vectors, rtol=1e-6)
    assert answer["texts"] == [TEXT, OTHER]
    assert answer["meta"]["billed_units"]["input_tokens"] > 0


def test_the_first_version_of_coheres_api_has_a_list_of_vectors(embedder: Served) -> None:
    given = {"texts": [TEXT, OTHER], "input_type": "search_query", "truncate": None}  # null: as langchain-cohere sends
    by_type = embedder.ok("/v2/embed", **given)
    plain = embedder.ok("/v1/embed", **given)
    assert plain["embeddings"] == by_type["embeddings"]["float"]
    assert (plain["response_type"], by_type["response_type"]) == ("embeddings_floats", "embeddings_by_type")
    asked = embedder.ok("/v1/embed", **given, embedding_types=["int8"])
    assert asked["embeddings"] == embedder.ok("/v2/embed", **given, embedding_types=["int8"])["embeddings"]


def test_cohere_cuts_at_the_side_that_is_asked_for(embedder: Served) -> None:
    long = "the " * 200 + "cat " * 200
    ends = {}
    for side, word in (("END", "the"), ("START", "cat")):
        [ends[side]] = embedder.ok("/v2/embed", texts=[long], truncate=side, max_tokens=10)["embeddings"]["float"]
        [expected] = [embedder.ok("/v1/embeddings", input=f"{word} " * 8)["data"][0]["embedding"]]
        assert ends[side] == pytest.approx(expected, abs=1e-5)
    assert embedder.refusal("/v2/embed", texts=[long], truncate="NONE")["code"] == "context_length_exceeded"
    assert "clustering" in embedder.refusal("/v2/embed", texts=[TEXT], input_type="clustering")["message"]


def test_routes_of_models_that_generate_are_refused_by_a_sentence(embedder: Served) -> None:
    error = embedder.refusal("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert error["code"] == "unsupported_task"
    assert "/v1/embeddings" in error["message"]


def test_models_say_what_they_do(embedder: Served) -> None:
    [card] = embedder.get("/v1/models").json()["data"]
    assert card["task"] == "embed"
    assert card["pooling"]["type"] == "mean"
    assert card["pooling"]["width"] == 48
    assert card["pooling"]["prompts"] == ["query", "document"]


def test_the_plan_says_why(embedder: Served) -> None:
    why = {each.path: each for each in embedder.plan.decisions}
    assert why["model.task"].value == "embed"
    assert "files are those of an embedder" in why["model.task"].reason
    assert why["model.pooling.kind"].value == "mean"
    assert why["scheduler.chunked_prefill"].value is False
    assert embedder.plan.cache.num_blocks == 0
    assert embedder.plan.memory[0].kv_bytes_per_token == 0


def test_openais_client_reads_the_vectors(embedder: Served) -> None:
    async def ask(client: openai.AsyncOpenAI) -> CreateEmbeddingResponse:
        return await client.embeddings.create(model="pooled", input=[TEXT, OTHER])

    answer = embedder.openai(ask)
    plain = embedder.ok("/v1/embeddings", input=[TEXT, OTHER], encoding_format="float")
    assert [each.embedding for each in answer.data] == [
        pytest.approx(each["embedding"], rel=1e-6) for each in plain["data"]
    ]
    assert answer.usage.total_tokens == plain["usage"]["total_tokens"]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_openais_client_over_a_socket(embedder: Served, form: Literal["float", "base64"]) -> None:
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="pooled", input=[TEXT, OTHER], encoding_format=form).data
    plain = embedder.ok("/v1/embeddings", input=[TEXT, OTHER])["data"]
    assert len(found) == len(plain)
    for each, expected in zip(found, plain, strict=True):
        numbers = np.frombuffer(base64.b64decode(each.embedding), "<f4") if form == "base64" else each.embedding
        assert np.allclose(numbers, expected["embedding"], rtol=1e-6)


def test_openais_client_is_told_what_the_model_cannot(embedder: Served) -> None:
    async def ask(client: openai.AsyncOpenAI) -> object:
        return await client.chat.completions.create(model="pooled", messages=[{"role": "user", "content": "hi"}])

    with pytest.raises(openai.BadRequestError, match="answers no prompts"):
        embedder.openai(ask)


def test_a_long_input_is_the_mean_of_its_chunks_by_their_tokens(serve: Callable[..., Served]) -> None:
    served = serve("bert-mean", "override_pooler_config: {enable_chunked_processing: true, max_embed_len: 150}")
    most = served.plan.model.max_model_len
    token_ids = [5 + at % 17 for at in range(2 * most + 10)]
    chunks = [token_ids[:most], token_ids[most : 2 * most], token_ids[2 * most :]]
    answer = served.ok("/v1/embeddings", input=token_ids)
    assert answer["usage"]["total_tokens"] == len(token_ids)
    parts = served.ok("/v1/embeddings", input=chunks, normalize=False)["data"]
    mean = sum(len(chunk) * np.array(part["embedding"]) for chunk, part in zip(chunks, parts, strict=True))
    expected = mean / np.linalg.norm(mean)
    assert answer["data"][0]["embedding"] == pytest.approx(expected, abs=1e-5)
    cut = served.ok("/v1/embeddings", input=token_ids, truncate_prompt_tokens=-1)
    assert cut["usage"]["total_tokens"] == most
    assert "150" in served.refusal("/v1/embeddings", input=[7] * 151)["message"]
    assert served.ok("/v1/embeddings", input="blue " * 100)["usage"]["total_tokens"] == 102
