"""Families as data: both versions of configs give the same decoder, and unsupported configs are refused by name."""

import json
from typing import Any

import msgspec
import pytest
import transformers

from appliance.checkpoint.dialects import DIALECTS
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Geometry, ModelFacts, StoredConventions, TensorFacts, TokenizerFacts
from appliance.layers.spec import DecoderSpec, ExpertsSpec
from appliance.models.describe import build_decoder
from appliance.models.errors import ModelError
from tests.models.tiny import FAMILIES, VARIANTS
from tests.models.tiny_pooled import POOLED
from tests.parity.test_remote_families import FAMILIES as REMOTE_FAMILIES

Json = dict[str, Any]


def config(name: str) -> Json:
    """Returns a config as transformers 5 writes it."""
    return json.loads((FAMILIES | VARIANTS)[name].config().to_json_string(use_diff=False))


def model_class(name: str) -> type[transformers.PreTrainedModel]:
    """transformers' own class of a family."""
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type((FAMILIES | VARIANTS)[name].config())]


def facts(name: str, values: Json | None = None, tensor: str = "model.norm.weight") -> ModelFacts:
    """Facts without weights: families read only names' prefixes."""
    return ModelFacts(
        root=".",
        format="safetensors",
        architecture=model_class(name).__name__,
        config=values or config(name),
        generation_config={},
        geometry=msgspec.convert(dict.fromkeys(Geometry.__struct_fields__, 0) | {"groups": ()}, Geometry, strict=False),
        tokenizer=TokenizerFacts(kind="none", chat_template=None, bos_token_id=None, eos_token_ids=(), add_bos=False),
        tensors=(
            TensorFacts(
                name=tensor, stored_name=tensor, shape=(1,), storage="f32", file="f", offset_bytes=0, size_bytes=4
            ),
        ),
        stored=StoredConventions(linear_is_transposed=name.startswith("gpt2")),
        quantization=None,
        header_sha256="",
    )


def decoder(name: str, values: Json | None = None, **more: Any) -> DecoderSpec:
    return build_decoder(facts(name, values, **more), 64)


def older(values: Json) -> Json:
    """The same config as transformers 4 wrote it: rotary keys beside the others, a list of layer types only where they
    follow from nothing else."""
    lists = ("cwm", "gemma3n_text", "granitemoehybrid", "lfm2", "lfm2_moe", "olmo_hybrid")
    new = ("rope_parameters",) if values["model_type"] in lists else ("rope_parameters", "layer_types")
    old = {key: value for key, value in values.items() if key not in new}
    rope = values["rope_parameters"]
    if values["model_type"] == "mimo_v2_flash":
        kinds = {"sliding_attention": 1, "full_attention": 0}
        old["hybrid_layer_pattern"] = [kinds[kind] for kind in values["layer_types"]]
        old["rope_theta"], old["swa_rope_theta"] = (rope[kind]["rope_theta"] for kind in reversed(kinds))
        return old
    if "full_attention" in rope and values["model_type"] == "olmo3":
        rope = rope["full_attention"]
    if "full_attention" in rope:
        old["rope_theta"] = rope["full_attention"]["rope_theta"]
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        if "_sliding_window_pattern" in values:
            old["sliding_window_pattern"] = values["_sliding_window_pattern"]
        return old
    old["rope_theta"] = rope["rope_theta"]
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope["partial_rotary_factor"]
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    old["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    return old


@pytest.mark.parametrize(
    "name",
    [name for name in [*FAMILIES, *VARIANTS] if config(name).get("rope_parameters") and not name.startswith("gemma4")],
)
def test_both_ages_of_a_config_give_one_decoder(name: str) -> None:
    assert decoder(name, older(config(name))) == decoder(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_the_inner_module_has_no_root_in_its_names(name: str) -> None:
    root = f"{model_class(name).base_model_prefix}."
    inner = decoder(name, tensor="norm.weight").weights
    outer = decoder(name, tensor=f"{root}norm.weight").weights
    assert {key: source.tensor.removeprefix(root) for key, source in outer.items()} == {
        key: source.tensor for key, source in inner.items()
    }


def test_qwen2_has_biases_on_three_projections_only() -> None:
    names = {name for name in decoder("qwen2").weights if name.endswith(".bias")}
    assert names == {f"layers.{layer}.{part}.bias" for layer in (0, 1) for part in "qkv"}


def test_gemma3_alternates_windows_and_rotary_bases() -> None:
    layers = [layer.mixer for layer in decoder("gemma3").layers]
    assert [attention.window for attention in layers] == [8, 8, None]
    assert layers[0].rope == layers[1].rope != layers[2].rope
    assert all(attention.scale == 24**-0.5 for attention in layers)


def test_gemma2_caps_scores_and_logits() -> None:
    spec = decoder("gemma2")
    assert spec.logit_soft_cap == 3.0
    assert [layer.mixer.soft_cap for layer in spec.layers] == [5.0] * 3
    assert [layer.mixer.window for layer in spec.layers] == [8, None, 8]
    assert spec.embedding_scale == 8.0


def test_gpt2_scales_scores_by_depth_where_the_config_says() -> None:
    scales = [layer.mixer.scale for layer in decoder("gpt2-scaled").layers]
    assert scales == [0.25, 0.125]
    unscaled = decoder("gpt2", config("gpt2") | {"scale_attn_weights": False})
    assert [layer.mixer.scale for layer in unscaled.layers] == [1.0, 1.0]


def test_an_unknown_architecture_is_refused_with_those_that_are_known() -> None:
    unknown = msgspec.structs.replace(facts("llama"), architecture="NoSuchForCausalLM")
    with pytest.raises(ModelError, match="'NoSuchForCausalLM' is not in this version") as caught:
        build_decoder(unknown, 64)
    assert "LlamaForCausalLM" in str(caught.value.hint)


def test_a_known_architecture_that_is_not_built_is_refused() -> None:
    later = msgspec.structs.replace(facts("llama"), architecture="WhisperForConditionalGeneration")
    with pytest.raises(ModelError, match="not in this version"):
        build_decoder(later, 64)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama", {"hidden_act": "quick_gelu"}, "activation 'quick_gelu'"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_what_a_family_cannot_express_is_refused_by_name(name: str, change: Json, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        decoder(name, config(name) | change)


def test_everything_that_a_family_cannot_express_is_told_at_once() -> None:
    values = config("gemma3") | {"hidden_activation": "quick_gelu"}
    values["rope_parameters"]["full_attention"] = {"rope_type": "mrope", "rope_theta": 1e6}
    with pytest.raises(ModelError) as caught:
        decoder("gemma3", values)
    assert [problem.concerns for problem in caught.value.problems] == ["checkpoint", "rotary"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mixtral", {"num_local_experts": 10_000_000}, "10000000 experts a layer are more than any model has"),
        ("mixtral", {"num_experts_per_tok": 7}, "7 experts are to be chosen for a token of 6"),
        ("glm4_moe", {"n_group": 3}, "8 experts do not form 3 groups"),
        ("dots1", {"topk_group": 1, "num_experts_per_tok": 3}, "1 of 4 groups have fewer than the 3"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias in the checkpoint's config is not in this version"),
    ],
)
def test_routing_that_cannot_be_is_refused_by_name(name: str, changes: Json, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        decoder(name, config(name) | changes)


@pytest.mark.parametrize(
    ("name", "sparse"),
    [
        ("qwen2_moe-sparse", [False, True, False, False]),  # every second layer, but not the last
        ("dots1", [False, True, True]),
        ("ernie4_5_moe", [False, True]),
        ("mixtral", [True, True]),
    ],
)
def test_layers_with_experts_are_those_that_the_config_names(name: str, sparse: list[bool]) -> None:
    assert [isinstance(layer.feed_forward, ExpertsSpec) for layer in decoder(name).layers] == sparse


def test_layers_that_draft_are_left_out() -> None:
    assert "*layers.2.*" in decoder("glm4_moe").ignored_tensors


@pytest.mark.parametrize(
    ("name", "removed", "older_form"),
    [
        ("kimi_linear", "layer_types", {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3]}}),
        ("lfm2", "layer_types", {"full_attn_idxs": [1]}),
        ("nemotron_h", "layers_block_type", {"hybrid_override_pattern": "ME*-"}),
        ("qwen3_next", "layer_types", {"full_attention_interval": 4}),
    ],
)
def test_older_forms_of_the_kinds_of_layers_give_one_decoder(name: str, removed: str, older_form: Json) -> None:
    values = {key: value for key, value in config(name).items() if key != removed}
    assert len(values) < len(config(name))
    assert decoder(name, values | older_form) == decoder(name)


def test_a_kind_of_layer_that_a_family_lacks_is_refused() -> None:
    with pytest.raises(CheckpointError, match="layer type 'linear_attention' is not in this version"):
        decoder("llama", config("llama") | {"layer_types": ["full_attention", "linear_attention"]})


def test_every_dialect_is_of_a_family_that_is_tested() -> None:
    tested = {config(name)["model_type"] for name in [*FAMILIES, *VARIANTS]}
    tested |= {pooled.model_type or pooled.config().model_type for pooled in POOLED.values()}
    assert set(DIALECTS) - tested - set(REMOTE_FAMILIES) == set()


def test_kimi_k2_is_written_as_deepseek_v3() -> None:
    assert decoder("deepseek3", {**config("deepseek3"), "model_type": "kimi_k2"}) == decoder("deepseek3")


def test_the_text_part_of_llama_4_is_read_out_of_a_model_of_more_media() -> None:
    values = config("llama4")
    outer = {"model_type": "llama4", "text_config": {**values, "no_rope_layers": []}, "vision_config": {}}
    inner, whole = decoder("llama4"), decoder("llama4", outer, tensor="language_model.model.norm.weight")
    assert {name: f"language_model.{source.tensor}" for name, source in inner.weights.items()} == {
        name: source.tensor for name, source in whole.weights.items()
    }
    assert [layer.mixer for layer in whole.layers] == [layer.mixer for layer in inner.layers]
