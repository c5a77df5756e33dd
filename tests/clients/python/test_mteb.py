"""mteb's own clients: a task of pairs of texts and one of ranks, made here, as no hub is reached."""

import math
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from datasets import Dataset
from mteb import TaskMetadata
from mteb._create_dataloaders import create_dataloader
from mteb.abstasks.sts import AbsTaskSTS
from mteb.models import OpenAIAPIEncodeWrapper, OpenAIAPIRerankWrapper
from mteb.types import PromptType
from served import KEY, MODEL, ROOT

ANIMALS, ACTS = ("cat", "dog", "horse"), ("sleeps on the sofa", "runs in the park", "eats its dinner")
TEXTS = [f"the {animal} {act}" for animal, act in product(ANIMALS, ACTS)]
PAIRS = list(product(range(len(TEXTS)), repeat=2))
METADATA = TaskMetadata(
    name="TinyPairs",
    description="Pairs of sentences by how much they share.",
    type="STS",
    dataset={"path": "none/none", "revision": "none"},
    eval_langs=["eng-Latn"],
    main_score="cosine_spearman",
)  # type: ignore[call-arg]


class TinyPairs(AbsTaskSTS):
    metadata = METADATA
    min_score, max_score = 0, 2

    def load_data(self, *_: Any, **__: Any) -> None:
        score = [(a // 3 == b // 3) + (a % 3 == b % 3) for a, b in PAIRS]
        firsts, seconds = ([TEXTS[pair[side]] for pair in PAIRS] for side in (0, 1))
        rows = Dataset.from_dict({"sentence1": firsts, "sentence2": seconds, "score": score})
        self.dataset, self.data_loaded = cast(Any, {"test": rows}), True


@pytest.fixture
def encoder() -> OpenAIAPIEncodeWrapper:
    return OpenAIAPIEncodeWrapper(
        endpoint_url=ROOT, model_name=MODEL, api_key=KEY, modalities=["text"], use_chat_template=False, max_retries=1
    )


def test_a_task_has_its_score(encoder: OpenAIAPIEncodeWrapper) -> None:
    task = TinyPairs()
    task.load_data()
    scores = cast(Any, task.evaluate(encoder, split="test", encode_kwargs={"batch_size": 16}))["default"]
    assert scores["cosine_spearman"] > 0.7
    assert not math.isnan(scores["cosine_pearson"])


def test_documents_are_ranked(encoder: OpenAIAPIEncodeWrapper) -> None:
    ranker = OpenAIAPIRerankWrapper(endpoint_url=ROOT, model_name=MODEL, api_key=KEY, max_retries=1)

    def loader(texts: list[str], kind: PromptType) -> Any:
        rows = Dataset.from_dict({"id": [str(at) for at in range(len(texts))], "text": texts})
        return create_dataloader(rows, task_metadata=METADATA, prompt_type=kind, batch_size=4)

    query = "a kitten naps on the couch"
    queries = loader([query] * len(TEXTS), PromptType.query)
    documents = loader(TEXTS, PromptType.document)
    found = ranker.predict(queries, documents, task_metadata=METADATA, hf_split="test", hf_subset="default")
    vectors = np.array(encoder._get_embeddings([query, *TEXTS]))
    np.testing.assert_allclose(np.array(found), vectors[1:] @ vectors[0], atol=1e-4)
    assert int(np.argmax(np.array(found))) == 0
