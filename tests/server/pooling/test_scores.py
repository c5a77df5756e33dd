"""/classify, /score and /rerank."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tests.models.tiny_pooled import WORDS
from tests.server.pooling.conftest import Served
from tests.server.pooling.test_embeddings import ids_of

QUERY = "what is blue"
DOCUMENTS = ["the sky is blue", "a dog ran far away", "who sat on the mat", "blue blue blue"]


def pair_ids(served: Served, query: str, document: str) -> list[int]:
    """[CLS] query [SEP] document [SEP]."""
    return [*ids_of(served, query), *ids_of(served, document)[1:]]


def logits(served: Served, token_ids: list[int], **inputs: Any) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(served.oracle(torch.tensor([token_ids]), **inputs).logits[0])


@pytest.fixture
def classifier(serve: Callable[..., Served]) -> Served:
    return serve("bert-classify")


@pytest.fixture
def reranker(serve: Callable[..., Served]) -> Served:
    return serve("bert-score")


def test_classes_are_those_of_transformers(classifier: Served) -> None:
    answer = classifier.ok("/classify", input=DOCUMENTS)
    assert len(answer["data"]) == len(DOCUMENTS)
    for text, each in zip(DOCUMENTS, answer["data"], strict=True):
        expected = logits(classifier, ids_of(classifier, text))
        assert each["probs"] == pytest.approx(np.exp(expected) / np.exp(expected).sum(), abs=1e-3)
        assert each["label"] == ("no", "maybe", "yes")[int(expected.argmax())]
        assert each["num_classes"] == 3
    raw = classifier.ok("/classify", input=DOCUMENTS[0], use_activation=False)["data"][0]["probs"]
    assert raw == pytest.approx(logits(classifier, ids_of(classifier, DOCUMENTS[0])), rel=1e-3, abs=1e-2)


def test_a_model_with_several_classes_scores_no_pairs(classifier: Served) -> None:
    assert "/classify" in classifier.refusal("/score", text_1=QUERY, text_2=DOCUMENTS)["message"]
    assert "/v1/embeddings" not in classifier.refusal("/v1/embeddings", input=QUERY)["message"]


def test_scores_are_those_of_a_cross_encoder(reranker: Served) -> None:
    answer = reranker.ok("/score", text_1=QUERY, text_2=DOCUMENTS)
    assert len(answer["data"]) == len(DOCUMENTS)
    for document, each in zip(DOCUMENTS, answer["data"], strict=True):
        token_ids = pair_ids(reranker, QUERY, document)
        first = len(ids_of(reranker, QUERY))
        types = torch.tensor([[0] * first + [1] * (len(token_ids) - first)])
        expected = logits(reranker, token_ids, token_type_ids=types)[0]
        assert each["score"] == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-3)


def test_pairs_one_by_one_and_the_other_names(reranker: Served) -> None:
    across = reranker.ok("/v1/score", queries=QUERY, documents=DOCUMENTS[:2])["data"]
    paired = reranker.ok("/score", text_1=[QUERY, QUERY], text_2=DOCUMENTS[:2])["data"]
    assert across == paired
    assert "2 texts" in reranker.refusal("/score", text_1=[QUERY, QUERY], text_2=DOCUMENTS[:1])["message"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_by_their_scores(reranker: Served, path: str) -> None:
    scores = [each["score"] for each in reranker.ok("/score", text_1=QUERY, text_2=DOCUMENTS)["data"]]
    answer = reranker.ok(path, query=QUERY, documents=DOCUMENTS, model="pooled")
    order = sorted(range(4), key=lambda index: -scores[index])
    assert [each["index"] for each in answer["results"]] == order
    for each in answer["results"]:
        assert each["relevance_score"] == pytest.approx(scores[each["index"]])
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    assert answer["usage"]["total_tokens"] == sum(len(pair_ids(reranker, QUERY, text)) for text in DOCUMENTS)
    best = reranker.ok(path, query=QUERY, documents=[{"text": DOCUMENTS[0]}, "a dog"], top_n=1, return_documents=False)
    assert len(best["results"]) == 1
    assert "document" not in best["results"][0]


def test_long_pairs_are_refused_or_cut(reranker: Served) -> None:
    long = "the sky is blue " * 100
    error = reranker.refusal("/rerank", query=QUERY, documents=[DOCUMENTS[0], long])
    assert error["code"] == "context_length_exceeded"
    assert "documents[1]" in error["message"]
    cut = reranker.ok("/rerank", query=QUERY, documents=[long], truncate_prompt_tokens=20)
    assert cut["usage"]["total_tokens"] == 20
    short = reranker.ok("/rerank", query=QUERY, documents=["the sky is blue " * 2])
    by_document = reranker.ok("/rerank", query=QUERY, documents=[long], max_tokens_per_doc=8)
    assert by_document["results"][0]["relevance_score"] == pytest.approx(short["results"][0]["relevance_score"])


def test_an_embedder_ranks_by_the_likeness_of_vectors(embedder: Served) -> None:
    answer = embedder.ok("/rerank", query=QUERY, documents=DOCUMENTS)
    texts = [f"who is {QUERY}", *(f"the {each}" for each in DOCUMENTS)]  # after the prompts of each side
    vectors = [np.array(each["embedding"]) for each in embedder.ok("/v1/embeddings", input=texts)["data"]]
    assert len(answer["results"]) == len(DOCUMENTS)
    for each in answer["results"]:
        assert each["relevance_score"] == pytest.approx(float(vectors[0] @ vectors[1 + each["index"]]), abs=1e-5)


def test_a_model_of_token_vectors_scores_by_the_best_matches(serve: Callable[..., Served]) -> None:
    tokens = serve("bert-all", "override_pooler_config: {pooling_type: ALL}")
    [score] = tokens.ok("/score", text_1=QUERY, text_2=DOCUMENTS[0])["data"]
    query, document = (np.array(tokens.ok("/pooling", input=text)["data"][0]["data"]) for text in (QUERY, DOCUMENTS[0]))
    assert score["score"] == pytest.approx(float((query @ document.T).max(-1).sum()), rel=1e-4)


def test_a_decoder_that_judges_needs_a_template_and_its_tokens(serve: Callable[..., Served]) -> None:
    labels = "task: score, override_pooler_config: {label_token_ids: [6, 5]}"  # no, yes
    error = serve("qwen3-last", labels).refusal("/score", text_1=QUERY, text_2=DOCUMENTS[0])
    assert error["code"] == "no_chat_template"
    template = "is {{ (messages | selectattr('role', 'eq', 'query') | first).content }} on {{ (messages | selectattr('role', 'eq', 'document') | first).content }}"  # noqa: E501
    served = serve("qwen3-last", f'{labels}, chat_template: "{template}"')
    [score] = served.ok("/score", text_1=QUERY, text_2=DOCUMENTS[0])["data"]
    token_ids = ids_of(served, f"is {QUERY} on {DOCUMENTS[0]}")[1:-1]
    no, yes = logits(served, token_ids)[-1][[6, 5]]
    assert score["score"] == pytest.approx(1 / (1 + np.exp(no - yes)), abs=1e-3)
    one = "task: score, override_pooler_config: {label_token_ids: [5]}"  # the logit of yes alone
    served = serve("qwen3-last", f'{one}, chat_template: "{template}"')
    [raw] = served.ok("/score", text_1=QUERY, text_2=DOCUMENTS[0], use_activation=False)["data"]
    assert raw["score"] == pytest.approx(yes, rel=1e-3, abs=1e-3)
    [score] = served.ok("/score", text_1=QUERY, text_2=DOCUMENTS[0])["data"]
    assert score["score"] == pytest.approx(1 / (1 + np.exp(-yes)), abs=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {"text_1": QUERY}, "text_1"),
        ("/score", {"text_1": QUERY, "text_2": []}, "text_2"),
        ("/rerank", {"query": QUERY, "documents": []}, "documents"),
        ("/rerank", {"query": QUERY, "documents": ["a"], "top_n": 0}, "top_n"),
        ("/rerank", {"query": QUERY, "documents": [{"title": "a"}]}, "documents[0].title"),
        ("/classify", {"input": []}, "input"),
    ],
)
def test_what_is_wrong_is_named(reranker: Served, path: str, body: dict[str, Any], param: str) -> None:
    assert reranker.refusal(path, **body)["param"] == param


def test_a_reward_model_judges_each_token(serve: Callable[..., Served]) -> None:
    served = serve("qwen3-tokens", "convert: reward")
    [found] = served.ok("/pooling", input=DOCUMENTS[0])["data"]
    expected = logits(served, ids_of(served, DOCUMENTS[0]))
    assert np.array(found["data"]) == pytest.approx(expected, rel=1e-3, abs=1e-2)
    assert "/pooling" in served.refusal("/classify", input=DOCUMENTS[0])["message"]


def test_steps_are_judged_at_the_tokens_that_end_them(serve: Callable[..., Served]) -> None:
    """As math-shepherd does: of the tokens "+" and "-", here yes and no, at each tag of a step, here blue."""
    token_ids = ids_of(serve("qwen3-tokens", "convert: reward"), "the sky is blue on a blue mat")
    [tag] = {each for each in token_ids if token_ids.count(each) == 2}
    steps = f"pooling_type: STEP, step_tag_id: {tag}, returned_token_ids: [5, 6]"
    served = serve("qwen3-last", f"task: classify, override_pooler_config: {{{steps}}}")
    [found] = served.ok("/pooling", input=token_ids)["data"]
    with torch.inference_mode():
        every = served.oracle(torch.tensor([token_ids])).logits[0]
    expected = every[[at for at, each in enumerate(token_ids) if each == tag]][:, [5, 6]].softmax(-1)
    assert expected.shape == (2, 2)
    assert np.array(found["data"]) == pytest.approx(expected.numpy(), abs=1e-3)
    assert served.ok("/pooling", input=[7, 8])["data"][0]["data"] == []


def test_logits_are_calibrated_before_their_activation(reranker: Served, serve: Callable[..., Served]) -> None:
    served = serve("bert-score", "override_pooler_config: {logit_mean: 0.5, logit_sigma: 4}")
    body = {"text_1": QUERY, "text_2": DOCUMENTS[0], "use_activation": False}
    [raw] = reranker.ok("/score", **body)["data"]
    [scaled] = served.ok("/score", **body)["data"]
    assert scaled["score"] == pytest.approx((raw["score"] - 0.5) / 4, rel=1e-4, abs=1e-5)
    [judged] = served.ok("/score", text_1=QUERY, text_2=DOCUMENTS[0])["data"]
    assert judged["score"] == pytest.approx(1 / (1 + np.exp(-scaled["score"])), abs=1e-5)


NUM_QUERIES, NUM_DOCUMENTS = 10, 100
NEAR = 1e-4  # of logits: what sums in another order may make of two documents that are as good


def test_a_thousand_pairs_are_ranked_as_by_the_cross_encoder(reranker: Served) -> None:
    random = np.random.default_rng(11)
    queries = [" ".join(random.choice(WORDS, random.integers(2, 6))) for _ in range(NUM_QUERIES)]
    documents = [" ".join(random.choice(WORDS, random.integers(1, 16))) for _ in range(NUM_DOCUMENTS)]
    for query in queries:
        answer = reranker.ok("/rerank", query=query, documents=documents, use_activation=False)
        expected = expected_scores(reranker, query, documents)
        order = [each["index"] for each in answer["results"]]
        assert sorted(order) == list(range(NUM_DOCUMENTS))
        falls = -np.diff(expected[order])
        assert falls.min() > -NEAR, query
        assert (falls > NEAR).mean() > 0.9, "so many near ties tell nothing of the order"
        scores = np.array([each["relevance_score"] for each in answer["results"]])
        np.testing.assert_allclose(scores, expected[order], rtol=1e-4, atol=NEAR)


def expected_scores(served: Served, query: str, documents: list[str]) -> np.ndarray:
    """The logits of transformers for a query with each document, in one padded batch."""
    tokenizer = Tokenizer.from_file(str(served.folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    pairs = tokenizer.encode_batch([(query, document) for document in documents])
    arrays = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
    inputs = {name: torch.tensor([getattr(pair, kind) for pair in pairs]) for name, kind in arrays.items()}
    with torch.inference_mode():
        return served.oracle(**inputs).logits[:, 0].numpy()
