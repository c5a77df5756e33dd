"""Which head a model that pools has, and what cannot have one."""

from pathlib import Path

import msgspec
import pytest

from appliance.catalog.pooling import PoolingChoice
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.models.describe import describe
from appliance.models.errors import ModelError
from tests.models.tiny_pooled import make_pooled


def facts(name: str, folder: Path) -> ModelFacts:
    make_pooled(name, folder)
    return read_model_facts(folder)


@pytest.mark.parametrize("name", ["bert-mean", "modernbert-mean", "gemma-mean"])
def test_an_encoder_generates_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="generates nothing"):
        describe(facts(name, tmp_path), 64)


def test_a_model_without_a_classifier_classifies_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no classifier, which the task score needs") as caught:
        describe(facts("qwen3-last", tmp_path), 64, PoolingChoice(task="score", kind="last"))
    assert "label_token_ids" in str(caught.value.hint)


def test_tokens_of_labels_are_rows_of_the_output_head(tmp_path: Path) -> None:
    choice = PoolingChoice(task="score", kind="last", label_token_ids=(7, 3))
    spec = describe(facts("qwen3-last", tmp_path), 64, choice).spec
    assert [spec.weights[f"label.{at}"].rows for at in range(2)] == [(7, 8), (3, 4)]
    assert spec.weights["label.0"].tensor == "lm_head.weight"
    assert "head" not in spec.weights


def test_a_part_of_a_classifier_is_told(tmp_path: Path) -> None:
    found = facts("roberta-cls", tmp_path)
    names = ("classifier.dense.weight", "classifier.dense.bias", "classifier.out_proj.bias")
    wrong = [msgspec.structs.replace(found.tensors[0], name=name) for name in names]
    partly = msgspec.structs.replace(found, tensors=(*found.tensors, *wrong))
    with pytest.raises(ModelError, match="no classifier"):
        describe(partly, 64, PoolingChoice(task="classify", kind="cls"))


def test_position_embeddings_of_another_kind_are_refused(tmp_path: Path) -> None:
    found = facts("bert-mean", tmp_path)
    other = found.config | {"position_embedding_type": "relative_key"}
    with pytest.raises(ModelError, match="relative_key"):
        describe(msgspec.structs.replace(found, config=other), 64, PoolingChoice(task="embed", kind="mean"))
