"""The typed view must agree with the transformers configuration classes, for configs of both versions."""

import contextlib
import functools
import json
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint import CheckpointError, ConfigFacts, derive_geometry, normalize_config
from appliance.checkpoint.dialects import DIALECTS

CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma2": transformers.Gemma2Config,
    "gemma3_text": transformers.Gemma3TextConfig,
    "phi3": transformers.Phi3Config,
    "gpt2": transformers.GPT2Config,
}
SMALL = {"num_hidden_layers": 7, "vocab_size": 100}


def full(model_type: str, **changes: Any) -> dict[str, Any]:
    """The config as transformers 5 writes it, every default spelled out."""
    config = CLASSES[model_type](**{**SMALL, **changes})
    return json.loads(config.to_json_string(use_diff=False))


@pytest.mark.parametrize("model_type", CLASSES)
def test_sizes_agree_with_transformers(model_type: str) -> None:
    config = CLASSES[model_type](**SMALL)
    facts = normalize_config(full(model_type))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert facts.num_layers == config.num_hidden_layers
    assert facts.hidden_size == config.hidden_size
    assert facts.num_heads == config.num_attention_heads
    assert facts.num_kv_heads == (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    assert facts.head_dim == head_dim
    assert facts.max_position == config.max_position_embeddings
    assert facts.tie_embeddings == config.tie_word_embeddings
    assert facts.norm_eps == getattr(config, "rms_norm_eps", None) or facts.norm_eps == 1e-5
    windows = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]
    if windows:
        assert [layer.window is not None for layer in facts.layers] == windows


# What hubs hold today: written by older versions, with rope_theta and without layer_types.
OLDER: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }},
    "mistral": {"rope_theta": 10000.0, "sliding_window": 4096},
    "qwen2": {"rope_theta": 1e6, "use_sliding_window": False, "sliding_window": 32768},
    "qwen3": {"rope_theta": 1e6, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 5},
    "gemma2": {"rope_theta": 10000.0, "sliding_window": 4096},
    "gemma3_text": {
        "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window": 512, "sliding_window_pattern": 6,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {"rope_theta": 10000.0, "sliding_window": 2047},
    "gpt2": {},
}  # fmt: skip


@pytest.mark.parametrize("model_type", OLDER)
def test_both_ages_of_a_config_mean_the_same(model_type: str) -> None:
    older = full(model_type) | {"model_type": model_type}
    for key in ("rope_parameters", "layer_types", "_sliding_window_pattern"):
        older.pop(key, None)
    older |= OLDER[model_type]
    newer = full(model_type, **OLDER[model_type])
    assert normalize_config(older) == normalize_config(newer)


def windows(facts: ConfigFacts) -> list[int | None]:
    return [layer.window for layer in facts.layers]


def test_window_patterns() -> None:
    assert windows(normalize_config(full("gemma2", sliding_window=64))) == [64, None, 64, None, 64, None, 64]
    assert windows(normalize_config(full("gemma3_text", sliding_window=64))) == [64] * 5 + [None, 64]
    assert windows(normalize_config(full("mistral", sliding_window=64))) == [64] * 7
    assert windows(normalize_config(full("mistral", sliding_window=None))) == [None] * 7
    assert windows(normalize_config(full("qwen2", use_sliding_window=False, sliding_window=64))) == [None] * 7
    used = full("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=5)
    assert windows(normalize_config(used)) == [None] * 5 + [64] * 2


def test_groups_share_a_window() -> None:
    geometry = derive_geometry(normalize_config(full("gemma2", sliding_window=64)))
    assert [(group.window, group.layers) for group in geometry.groups] == [(64, (0, 2, 4, 6)), (None, (1, 3, 5))]


def test_multimodal_configs_are_read_through_their_text_part() -> None:
    """google/gemma-3-4b-it leaves most of its text config to the defaults of the class."""
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    facts = normalize_config({"model_type": "gemma3", "architectures": ["X"], "text_config": text, "vision_config": {}})
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.vocab_size) == (8, 4, 256, 262_208)
    assert (facts.max_position, facts.tie_embeddings) == (131_072, True)
    assert facts.layers[5].rope is not None
    assert facts.layers[0].rope is not None
    assert (facts.layers[5].rope.theta, facts.layers[5].rope.parameters) == (1e6, {"factor": 8.0})
    assert (facts.layers[0].rope.theta, facts.layers[0].rope.kind) == (1e4, "default")


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        ({"type": "dynamic", "factor": 2.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 2048),
        ({"type": "su", "short_factor": [1.0], "long_factor": [2.0]}, 2048),
        (None, 2048),
    ],
)
def test_context_is_scaled_where_the_config_gives_the_length_before(scaling: Any, expected: int) -> None:
    config = full("llama") | {"rope_scaling": scaling}
    del config["rope_parameters"]
    assert normalize_config(config).max_position == expected


def test_experts() -> None:
    config = full("llama") | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    facts = normalize_config(config)
    assert (facts.num_experts, facts.num_experts_per_token) == (8, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": 1 << 30}, "at most"),
        ({"layer_types": ["full_attention"]}, "must list 7 layers"),
        ({"layer_types": ["linear_attention"] * 7}, "'linear_attention' is not in this version"),
        ({"num_key_value_heads": 3}, "32, which is no multiple of num_key_value_heads, 3"),
        ({"hidden_size": 8, "head_dim": None}, "hidden_size is 8, less than num_attention_heads, 32"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; a number above 0"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'; a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; a number"),
        ({"rms_norm_eps": 3.0}, "rms_norm_eps is 3; a number below 1"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; true or false"),
        ({"attention_bias": 1}, "attention_bias is 1; true or false"),
        ({"sliding_window": -1}, "sliding_window is -1; a whole number"),
        ({"sliding_window": False}, "sliding_window is False; a whole number"),
        ({"sliding_window": 8, "layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ({"hidden_act": 5}, "hidden_act is 5; a text"),
        ({"model_type": ["llama"]}, "model_type is .*; a text"),
        ({"text_config": [1]}, "text_config is .*; a mapping"),
        ({"rope_parameters": 7}, "rope_parameters is 7; a mapping"),
        ({"rope_parameters": None, "rope_scaling": ""}, "rope_scaling is ''; a mapping"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta is -1.0; a number above 0"),
        ({"rope_parameters": {"partial_rotary_factor": 0}}, "partial_rotary_factor is 0; a number above 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 1e-9}}, "a context of 0 tokens"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 1e25}}, "the rotary scaling makes a context of"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping is 0.0; a number above 0"),
        ({"rope_parameters": {"rope_type": "magic"}}, "'magic' is not known"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "8"}}, "factor is '8'"),
    ],
)
def test_faults_name_the_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        normalize_config(full("llama") | change)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gptj", "rotary_dim", 10**400),
        ("gptj", "n_embd", 10**400),
        ("granite", "attention_multiplier", 1e300),
        ("gpt_bigcode", "n_embd", 2**40),
        ("chatglm", "rope_ratio", 10**400),
        ("chatglm", "multi_query_group_num", "2"),
    ],
)
def test_values_that_others_follow_from_are_bounded(model_type: str, key: str, value: Any) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"partial_rotary_factor|rotary_dim|hidden_size|attention_multiplier|rope_ratio|num_key_value_heads",
    ):
        normalize_config(default(model_type) | {key: value})


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["rope_type", "factor", "type"]), inner)
    ),
    max_leaves=4,
)


ALSO_NAMED = {"new": "gte"}  # model types of the hub for which transformers has another name


# Configs of model types that transformers does not have.
REMOTE: dict[str, dict[str, Any]] = {
    "chatglm": {
        "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
        "ffn_hidden_size": 13_696, "padded_vocab_size": 65_024, "seq_length": 8192, "layernorm_epsilon": 1e-5,
        "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True, "add_bias_linear": False,
        "rope_ratio": 1,
    },
}  # fmt: skip


@functools.cache
def default(model_type: str) -> dict[str, Any]:
    if model_type in REMOTE:
        return REMOTE[model_type]
    config = transformers.CONFIG_MAPPING[ALSO_NAMED.get(model_type, model_type)]()
    return {**json.loads(config.to_json_string(use_diff=False)), **OLDER.get(model_type, {})}


@settings(max_examples=400, deadline=None)
@given(model_type=st.sampled_from(sorted(DIALECTS)), data=st.data())
def test_junk_gives_an_error_and_never_a_crash(model_type: str, data: st.DataObject) -> None:
    config = dict(default(model_type))
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[key] = data.draw(JUNK)
    with contextlib.suppress(CheckpointError):
        derive_geometry(normalize_config(config))
