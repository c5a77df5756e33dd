"""Weights from a checkpoint: all tensors are accounted for, translated one at a time, joined, and copied if needed."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from appliance.catalog.formats import F32, TensorRole, WeightForm
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.read import read_model_facts
from appliance.checkpoint.reader import TensorReader, open_tensors
from appliance.kernels.layout import Layout
from appliance.loading.inventory import WeightError, take_inventory
from appliance.loading.weights import DecoderWeights, Progress
from appliance.models.describe import describe
from appliance.plan.types import PrecisionPlan, WeightPlan

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (20, 8),
    f"{LAYER}input_layernorm.weight": (8,),
    f"{LAYER}self_attn.q_proj.weight": (8, 8),
    f"{LAYER}self_attn.k_proj.weight": (4, 8),
    f"{LAYER}self_attn.v_proj.weight": (4, 8),
    f"{LAYER}self_attn.o_proj.weight": (8, 8),
    f"{LAYER}post_attention_layernorm.weight": (8,),
    f"{LAYER}mlp.gate_proj.weight": (12, 8),
    f"{LAYER}mlp.up_proj.weight": (12, 8),
    f"{LAYER}mlp.down_proj.weight": (8, 12),
    "model.norm.weight": (8,),
    "lm_head.weight": (20, 8),
}
ROLES: tuple[TensorRole, ...] = ("linear", "embedding", "other")
Tensors = dict[str, np.ndarray]


def tensors() -> Tensors:
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def saved(folder: Path, weights: Tensors, **config: object) -> ModelFacts:
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(weights, folder / "model.safetensors")
    return read_model_facts(folder)


def plan(facts: ModelFacts, form: WeightForm = F32) -> PrecisionPlan:
    pairs = {(tensor.storage, role) for tensor in facts.tensors for role in ROLES}
    weights = tuple(
        WeightPlan(
            storage=storage,
            role=role,
            layout=form.layout,
            group_size=form.group_size,
            num_tensors=0,
            stored_bytes=0,
            planned_bytes=0,
            error="",
        )
        for storage, role in pairs
    )
    return PrecisionPlan(weights=weights, activations="f32", quantize_activations=False, kv_dtype="f32")


def weights_of(
    facts: ModelFacts, reader: TensorReader, form: WeightForm = F32, progress: Progress | None = None
) -> DecoderWeights:
    described = describe(facts, 16)
    inventory = take_inventory(described, facts, plan(facts, form))
    compiled = described.stored_as({name: item.form for name, item in inventory.items()}).compiled
    return DecoderWeights(compiled, inventory, reader, 16, progress)


def refusal(facts: ModelFacts) -> str:
    with open_tensors(facts) as reader, pytest.raises(WeightError) as caught:
        weights_of(facts, reader)
    return str(caught.value)


def test_all_missing_tensors_are_named_at_once(tmp_path: Path) -> None:
    missing = ("model.norm.weight", f"{LAYER}mlp.up_proj.weight")
    message = refusal(saved(tmp_path, {name: value for name, value in tensors().items() if name not in missing}))
    assert message.startswith("the checkpoint lacks 2 tensors")
    assert all(name in message for name in missing)


def test_tensors_under_other_names_are_no_broken_download(tmp_path: Path) -> None:
    renamed = {name.replace("model.", "decoder."): value for name, value in tensors().items()}
    facts = saved(tmp_path, renamed)
    with open_tensors(facts) as reader, pytest.raises(WeightError) as caught:
        weights_of(facts, reader)
    assert caught.value.hint == (
        "other tensors are in their place: does the architecture in config.json match the weights?"
    )


def test_a_tensor_that_nothing_reads_is_an_error(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.q_proj.bias": np.zeros(8, np.float32)}
    message = refusal(saved(tmp_path, tensors() | extra))
    assert "no part of the model reads 1 tensor: model.layers.0.self_attn.q_proj.bias" in message


def test_buffers_that_training_left_behind_are_ignored(tmp_path: Path) -> None:
    extra = {f"{LAYER}self_attn.rotary_emb.inv_freq": np.zeros(2, np.float32)}
    facts = saved(tmp_path, tensors() | extra)
    with open_tensors(facts) as reader:
        assert f"{LAYER}self_attn.rotary_emb.inv_freq" not in weights_of(facts, reader)


def test_a_stored_copy_of_a_tied_head_is_ignored(tmp_path: Path) -> None:
    facts = saved(tmp_path, tensors(), tie_word_embeddings=True)
    with open_tensors(facts) as reader:
        assert "head" not in weights_of(facts, reader)


def test_a_shape_that_the_config_does_not_call_for_is_an_error(tmp_path: Path) -> None:
    wrong = {f"{LAYER}mlp.down_proj.weight": np.zeros((8, 16), np.float32)}
    message = refusal(saved(tmp_path, tensors() | wrong))
    assert "down_proj.weight has the shape (8, 16); the config calls for (8, 12)" in message


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    stored = tensors()
    facts = saved(tmp_path, stored)
    with open_tensors(facts) as reader:
        joined = weights_of(facts, reader)["layers.0.q+k+v"]
    parts = [stored[f"{LAYER}self_attn.{name}_proj.weight"] for name in "qkv"]
    np.testing.assert_array_equal(joined.data, np.concatenate(parts))
    assert (joined.out_features, joined.in_features) == (16, 8)


def test_a_weight_that_already_has_its_form_is_a_view_of_the_file(tmp_path: Path) -> None:
    facts = saved(tmp_path, tensors())
    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader)
        assert not weights["layers.0.o"].data.flags.owndata
        assert np.shares_memory(weights["layers.0.o"].data, reader.read(f"{LAYER}self_attn.o_proj.weight"))


def test_vectors_are_f32_whatever_the_plan_of_matrices(tmp_path: Path) -> None:
    halves = {name: value.astype(np.float16) for name, value in tensors().items()}
    facts = saved(tmp_path, halves)
    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader, WeightForm("bf16"))
        norm, matrix = weights["norm"], weights["layers.0.down"]
    assert (norm.layout, norm.out_features, norm.in_features) == (Layout.F32, 1, 8)
    np.testing.assert_array_equal(norm.data[0], halves["model.norm.weight"].astype(np.float32))
    assert matrix.layout is Layout.BF16


@pytest.mark.parametrize("form", [WeightForm("int8"), WeightForm("int8", 4), WeightForm("int4", 4, True)])
def test_dense_weights_are_quantized_while_loading(tmp_path: Path, form: WeightForm) -> None:
    facts = saved(tmp_path, tensors())
    with open_tensors(facts) as reader:
        weight = weights_of(facts, reader, form)["layers.0.down"]
    assert weight.layout == form.layout
    assert weight.group_size == (form.group_size or 12)
    assert weight.scale is not None
    assert weight.scale.shape == (8, 12 // (form.group_size or 12))


def test_a_form_that_does_not_divide_the_columns_names_the_tensor(tmp_path: Path) -> None:
    facts = saved(tmp_path, tensors())
    with open_tensors(facts) as reader, pytest.raises(WeightError, match=r"q_proj.*8 columns do not divide"):
        _ = weights_of(facts, reader, WeightForm("int8", 32))["layers.0.q+k+v"]


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    facts, seen = saved(tmp_path, tensors()), []
    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader, progress=lambda done, total: seen.append((done, total)))
        for name in weights:
            _ = weights[name]
    assert seen[-1] == (facts.size_bytes, facts.size_bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked = saved(tmp_path, tensors()), []
    read: Callable[[TensorReader, str], np.ndarray] = TensorReader.read

    def watched(reader: TensorReader, name: str) -> np.ndarray:
        asked.append(name)
        return read(reader, name)

    monkeypatch.setattr(TensorReader, "read", watched)
    with open_tensors(facts) as reader:
        weights = weights_of(facts, reader)
        assert len(list(weights)) == len(weights)
        assert asked == []
        _ = weights["norm"]
    assert asked == ["model.norm.weight"]
