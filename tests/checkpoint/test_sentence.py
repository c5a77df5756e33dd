"""The files of sentence-transformers folders: modules, pooling, dense maps, prompts and lengths."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import SentenceFacts
from appliance.checkpoint.read import read_model_facts
from tests.models.tiny_pooled import make_pooled, write_sentence_files

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_pooled("bert-mean", tmp_path)
    write_sentence_files(tmp_path, prompts={"query": "q: "}, default_prompt_name="query")
    return tmp_path


def sentence(folder: Path) -> SentenceFacts:
    found = read_model_facts(folder).sentence
    assert found is not None
    return found


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def test_modules_prompts_and_lengths_are_read(folder: Path) -> None:
    write(folder / "sentence_bert_config.json", {"max_seq_length": 40})
    found = sentence(folder)
    assert (found.kind, found.normalize, found.max_length) == ("mean", True, 40)
    assert (found.prompts, found.default_prompt) == ({"query": "q: "}, "query")


def test_a_folder_without_modules_has_none(folder: Path) -> None:
    (folder / "modules.json").unlink()
    assert read_model_facts(folder).sentence is None


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_each_way_of_pooling(folder: Path, config: dict[str, Any], kind: str) -> None:
    write(folder / "1_Pooling" / "config.json", config)
    assert sentence(folder).kind == kind


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pooling_mode_cls_token"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({}, "nothing"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": False}, "prompt"),
    ],
)
def test_other_ways_of_pooling_are_refused_by_name(folder: Path, config: dict[str, Any], named: str) -> None:
    write(folder / "1_Pooling" / "config.json", config)
    with pytest.raises(CheckpointError, match=named):
        read_model_facts(folder)


def test_dense_modules_are_tensors_of_the_checkpoint(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    write(folder / "modules.json", modules)
    activation = "torch.nn.modules.activation.Tanh"
    write(folder / "2_Dense" / "config.json", {"in_features": 48, "out_features": 8, "activation_function": activation})
    save_file(
        {"linear.weight": torch.zeros(8, 48), "linear.bias": torch.zeros(8)}, folder / "2_Dense" / "model.safetensors"
    )
    facts = read_model_facts(folder)
    assert facts.sentence is not None
    [dense] = facts.sentence.dense
    assert (dense.name, dense.out_features, dense.bias, dense.activation) == ("2_Dense", 8, True, "tanh")
    names = {tensor.name: tensor.file for tensor in facts.tensors}
    assert names["2_Dense.linear.weight"] == "2_Dense/model.safetensors"
    write(folder / "2_Dense" / "config.json", {"activation_function": "torch.nn.modules.activation.Mish"})
    with pytest.raises(CheckpointError, match="Mish"):
        read_model_facts(folder)


def test_unknown_modules_are_refused_by_name(folder: Path) -> None:
    write(folder / "modules.json", [{"path": "", "type": "sentence_transformers.models.WordEmbeddings"}])
    with pytest.raises(CheckpointError, match="WordEmbeddings"):
        read_model_facts(folder)
    write(folder / "modules.json", {"path": ""})
    with pytest.raises(CheckpointError, match="not a list of modules"):
        read_model_facts(folder)


def test_the_digest_covers_every_file(folder: Path) -> None:
    before = read_model_facts(folder).header_sha256
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "other: "}})
    assert read_model_facts(folder).header_sha256 != before
