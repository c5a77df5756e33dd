"""What a model is for, which rows it pools and what is made of them: by flag, by its files, by its architecture."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.base.errors import SpecError
from appliance.checkpoint import CheckpointError
from appliance.plan.prepare import prepare
from appliance.plan.render import render_text
from appliance.plan.types import EnginePlan, PoolingPlan
from tests.models.tiny_pooled import make_pooled, write_sentence_files, write_tokenizer

REWARDS = {"qwen2-reward": (1, "none"), "qwen2-process-reward": (2, "softmax")}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name in ("bert-mean", "bert-classify", "bert-score", "bert-tokens", "qwen3-last", "qwen3-classify", *REWARDS):
        folders[name] = tmp_path_factory.mktemp(name)
        make_pooled(name, folders[name])
        write_tokenizer(folders[name])
    folders["sentence"] = tmp_path_factory.mktemp("sentence")
    make_pooled("bert-mean", folders["sentence"])
    write_tokenizer(folders["sentence"])
    write_sentence_files(folders["sentence"])
    (folders["sentence"] / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folders["sentence"] / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    return folders


def planned(folder: Path, model: str = "", rest: str = "") -> EnginePlan:
    spec = folder / "deployment.yaml"
    spec.write_text(
        "api_version: appliance/v1\nkind: Deployment\nname: pooled\n"
        f"model: {{source: {folder}, {model}}}\nloading: {{keep_packed: false}}\n{rest}"
    )
    return prepare(spec, hardware="server-epyc-9654", to_run=False).plan


def pooling(plan: EnginePlan) -> PoolingPlan:
    assert plan.model.pooling is not None
    return plan.model.pooling


@pytest.mark.parametrize("name", REWARDS)
def test_reward_models_judge_each_token_by_their_names(checkpoints: dict[str, Path], name: str) -> None:
    plan = pooling(planned(checkpoints[name]))
    assert (plan.task, plan.kind, plan.width, plan.activation) == ("classify", "all", *REWARDS[name])
    assert len(plan.labels) == plan.width


def test_a_sentence_transformers_folder_embeds_as_it_says(checkpoints: dict[str, Path]) -> None:
    plan = planned(checkpoints["sentence"])
    found = pooling(plan)
    assert (found.task, found.kind, found.activation, found.width) == ("embed", "cls", "normalize", 48)
    assert found.has_token_types
    assert plan.model.max_model_len == 48
    assert (plan.scheduler.chunked_prefill, plan.scheduler.max_num_seqs) == (False, 256)
    assert plan.cache.prefix_caching is False
    assert plan.memory[0].kv_groups == ()


def test_the_plan_shows_what_is_pooled(checkpoints: dict[str, Path]) -> None:
    text = render_text(planned(checkpoints["sentence"]))
    assert "pools      the first token to embed: 48 numbers, of length 1" in text


def test_tensors_that_no_weight_is_made_from_may_have_any_type(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    for file in checkpoints["bert-mean"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "embeddings.position_ids": torch.arange(66)}, tmp_path / "model.safetensors")
    assert pooling(planned(tmp_path)).task == "embed"


def test_a_flag_wins_over_the_files(checkpoints: dict[str, Path]) -> None:
    settings = "override_pooler_config: {pooling_type: MEAN, normalize: false}, max_model_len: 60"
    plan = planned(checkpoints["sentence"], settings)
    assert (pooling(plan).kind, pooling(plan).activation, plan.model.max_model_len) == ("mean", "none", 60)
    why = {each.path: each.source for each in plan.decisions}
    assert why["model.pooling.kind"] == "spec"


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("bert-mean", "", ("embed", "mean", "normalize")),
        ("bert-classify", "", ("classify", "cls", "softmax")),
        ("bert-score", "", ("score", "cls", "sigmoid")),
        ("bert-tokens", "", ("classify", "all", "softmax")),
        ("qwen3-classify", "", ("classify", "last", "softmax")),
        ("qwen3-last", "task: embed", ("embed", "last", "normalize")),
        ("qwen3-last", "convert: embed", ("embed", "last", "normalize")),
        ("qwen3-last", "runner: pooling", ("embed", "last", "normalize")),
        ("bert-classify", "task: embed", ("embed", "mean", "normalize")),
    ],
)
def test_what_an_architecture_is_for(
    checkpoints: dict[str, Path], name: str, model: str, expected: tuple[str, str, str]
) -> None:
    found = pooling(planned(checkpoints[name], model))
    assert (found.task, found.kind, found.activation) == expected


def judge(folder: Path, made: Path, **config: Any) -> Path:
    """A copy of a decoder's folder, with more in its config."""
    for file in made.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | config))
    return folder


def write_score_module(folder: Path, **settings: int | None) -> None:
    kind = "sentence_transformers"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{kind}.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": f"{kind}.cross_encoder.modules.logit_score.LogitScore"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("settings", "labels", "activation"),
    [
        ({"true_token_id": 5, "false_token_id": 6}, (6, 5), "softmax"),
        ({"true_token_id": 5, "false_token_id": None}, (5,), "sigmoid"),
    ],
)
def test_a_reranker_of_sentence_transformers_scores_by_the_tokens_of_its_files(
    checkpoints: dict[str, Path], tmp_path: Path, settings: dict[str, Any], labels: tuple[int, ...], activation: str
) -> None:
    folder = judge(tmp_path, checkpoints["qwen3-last"])
    write_score_module(folder, **settings)
    found = pooling(planned(folder))
    assert (found.task, found.kind, found.label_token_ids, found.activation) == ("score", "last", labels, activation)
    assert found.width == len(labels)
    stated = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))
    assert pooling(planned(folder)).activation == "none"


def test_a_config_that_says_it_is_qwen3_reranker_has_its_template_and_tokens(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = judge(tmp_path, checkpoints["qwen3-last"], is_original_qwen3_reranker=True)
    plan = planned(folder)
    assert (pooling(plan).task, pooling(plan).label_token_ids) == ("score", (6, 5))  # no, yes of the tokenizer
    assert "Judge whether the Document meets the requirements" in (plan.model.chat_template or "")
    assert planned(folder, "task: generate").model.chat_template is None
    embedder = pooling(planned(folder, "task: embed"))
    assert (embedder.label_token_ids, embedder.width) == ((), 48)
    assert planned(folder, "chat_template: chatml").model.chat_template != plan.model.chat_template
    other = judge(tmp_path, checkpoints["qwen3-last"], classifier_from_token=["yes"])
    assert pooling(planned(other)).label_token_ids == (5,)
    assert planned(other).model.chat_template is None
    unknown = judge(tmp_path, checkpoints["qwen3-last"], classifier_from_token=["perhaps"])
    with pytest.raises(CheckpointError, match="'perhaps', which is no token"):
        planned(unknown)


def test_a_decoder_in_which_nothing_says_that_it_judges_is_refused(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(SpecError) as raised:
        planned(checkpoints["qwen3-last"], "task: score")
    [hint] = [each.hint for each in raised.value.diagnostics]
    assert "label_token_ids" in hint
    assert "chat_template" in hint


def test_requests_are_shed_by_the_bound_of_whole_ones(checkpoints: dict[str, Path]) -> None:
    slo = "slo: {e2el_p50: 1s, e2el_p95: 2s, shed_factor: 1.5}\n"
    assert planned(checkpoints["bert-mean"], rest=slo).serving.shed_above_s == 3.0
    with pytest.raises(SpecError, match="no ttft bound"):
        planned(checkpoints["qwen3-last"], rest=slo)


def test_a_decoder_generates_unless_it_is_told_to_embed(checkpoints: dict[str, Path]) -> None:
    assert planned(checkpoints["qwen3-last"]).model.pooling is None
    plan = planned(checkpoints["qwen3-last"], "task: embed")
    assert plan.scheduler.chunked_prefill is True
    assert plan.cache.prefix_caching is True
    assert plan.memory[0].kv_bytes_per_token > 0
    assert planned(checkpoints["sentence"], "task: embed").model.task == "embed"


@pytest.mark.parametrize(
    ("name", "model", "rest", "place"),
    [
        ("bert-mean", "task: generate", "", "model.task"),
        ("bert-mean", "task: classify", "", "model.task"),
        ("qwen3-last", "task: score", "", "model.source"),
        ("qwen3-last", "override_pooler_config: {pooling_type: CLS}", "", "model.override_pooler_config"),
        ("bert-mean", "override_pooler_config: {pooling_type: MAX}", "", "model.override_pooler_config.pooling_type"),
        ("bert-mean", "override_pooler_config: {polling: CLS}", "", "model.override_pooler_config.polling"),
        (
            "bert-mean",
            "override_pooler_config: {matryoshka_dimensions: [16, none]}",
            "",
            "model.override_pooler_config.matryoshka_dimensions",
        ),
        ("bert-mean", "override_pooler_config: {normalize: 3}", "", "model.override_pooler_config.normalize"),
        ("bert-mean", "override_pooler_config: {label_token_ids: [1, 2]}", "", "model.override_pooler_config"),
        ("bert-mean", "", "scheduler: {chunked_prefill: true}\n", "scheduler.chunked_prefill"),
        ("bert-mean", "", "cache: {prefix_caching: true}\n", "cache.prefix_caching"),
        ("bert-mean", "max_model_len: 67", "", "model.max_model_len"),
        ("bert-mean", "", "hardware: {memory: {kv_cache: 1MiB}}\n", "hardware.memory.kv_cache"),
        ("bert-mean", "", "cache: {num_blocks: 4}\n", "cache.num_blocks"),
        ("bert-mean", "override_pooler_config: {pooling_type: CLS, enable_chunked_processing: true, max_embed_len: 200}", "", "model.override_pooler_config.enable_chunked_processing"),  # noqa: E501
        ("bert-classify", "override_pooler_config: {enable_chunked_processing: true, max_embed_len: 200}", "", "model.override_pooler_config.enable_chunked_processing"),  # noqa: E501
        ("bert-mean", "override_pooler_config: {enable_chunked_processing: true}", "", "model.override_pooler_config.max_embed_len"),  # noqa: E501
        ("bert-mean", "override_pooler_config: {max_embed_len: 200}", "", "model.override_pooler_config.enable_chunked_processing"),  # noqa: E501
        ("bert-mean", "override_pooler_config: {step_tag_id: 3}", "", "model.override_pooler_config.step_tag_id"),
        ("bert-mean", "override_pooler_config: {logit_mean: 3}", "", "model.override_pooler_config.logit_mean"),
        ("bert-score", "override_pooler_config: {logit_sigma: 0}", "", "model.override_pooler_config.logit_sigma"),
        ("bert-score", "override_pooler_config: {logit_sigma: true}", "", "model.override_pooler_config.logit_sigma"),
        ("qwen3-last", "task: classify, override_pooler_config: {returned_token_ids: [5, 6]}", "", "model.override_pooler_config.returned_token_ids"),  # noqa: E501
        ("qwen3-last", "task: classify, override_pooler_config: {pooling_type: STEP, step_tag_id: 96, returned_token_ids: [5, 6]}", "", "model.override_pooler_config.step_tag_id"),  # noqa: E501
        ("qwen3-last", "convert: reward", "", "model.source"),
        ("bert-mean", "", "slo: {ttft_p95: 1s, e2el_p95: 2s}\n", "slo.ttft_p95"),
        ("qwen3-last", "task: embed", "slo: {tpot_p50: 1s}\n", "slo.tpot_p50"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_its_place(
    checkpoints: dict[str, Path], name: str, model: str, rest: str, place: str
) -> None:
    with pytest.raises(SpecError) as raised:
        planned(checkpoints[name], model, rest)
    found: list[Any] = [each for each in raised.value.diagnostics if each.path.startswith(place)]
    assert found, [each.path for each in raised.value.diagnostics]
    assert found[0].allowed or found[0].hint


def test_classes_without_numbers_are_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    for file in checkpoints["bert-classify"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"id2label": {"a": "no", "b": "yes", "c": "maybe"}}))
    with pytest.raises(CheckpointError, match="no numbers of classes"):
        planned(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
    ],
)
def test_the_activation_that_a_cross_encoder_states(
    checkpoints: dict[str, Path], tmp_path: Path, config: dict[str, Any], expected: str
) -> None:
    for file in checkpoints["bert-classify"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | config))
    assert pooling(planned(tmp_path)).activation == expected
