"""Inverse frequencies and attention factors against transformers' own functions."""

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from appliance.checkpoint.config import normalize_config
from appliance.checkpoint.errors import CheckpointError
from appliance.layers.rope import RopeSpec
from appliance.loading.rope import inverse_frequencies
from appliance.models.errors import ModelError
from appliance.models.rotary import rope_spec

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn, stated": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
    "yarn, factor": {"factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.1},
}


def config(**rope: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=16_384,
        rope_parameters={"rope_theta": 500_000.0, **rope},
    )


def ours(values: dict[str, Any], max_model_len: int = 4096) -> RopeSpec:
    facts = normalize_config(values)
    rope = facts.layers[0].rope
    assert rope is not None
    return rope_spec(rope, facts, max_model_len)


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_equal_those_of_transformers(name: str) -> None:
    kind = name.split(",", maxsplit=1)[0]
    theirs = config(rope_type=kind, **SCALINGS[name])
    expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
    found = ours(theirs.to_dict())
    np.testing.assert_allclose(inverse_frequencies(found), expected.numpy(), rtol=2e-6)
    assert found.attention_factor == pytest.approx(factor)


@pytest.mark.parametrize("factor", [None, 1.07])
@pytest.mark.parametrize("max_model_len", [4096, 4097])
def test_longrope_chooses_by_the_longest_sequence(max_model_len: int, factor: float | None) -> None:
    theirs = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
            "original_max_position_embeddings": 4096,
        }
        | ({"attention_factor": factor} if factor else {}),
    )
    expected, attention = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu", seq_len=max_model_len)
    found = ours(theirs.to_dict(), max_model_len)
    np.testing.assert_allclose(inverse_frequencies(found), expected.numpy(), rtol=2e-6)
    assert found.attention_factor == pytest.approx(attention)
    assert found.rotary_dim == 8


def test_dynamic_scaling_runs_where_it_changes_nothing() -> None:
    values = config(rope_type="dynamic", factor=2.0).to_dict()
    assert ours(values, 16_384) == ours(config().to_dict())
    with pytest.raises(ModelError, match="beyond 16384 tokens") as caught:
        ours(values, 16_385)
    assert caught.value.hint == "set model.max_model_len to 16384 or less"


def test_a_theta_that_turns_nothing_is_the_configs_fault() -> None:
    with pytest.raises(CheckpointError, match="rope_theta is 0; a number above 0 is expected"):
        ours({**config().to_dict(), "rope_parameters": {"rope_theta": 0}})


def test_what_is_missing_or_unknown_is_named() -> None:
    with pytest.raises(ModelError, match="needs the number low_freq_factor"):
        ours({**config().to_dict(), "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4}})
    with pytest.raises(ModelError, match="'mrope' is not in this version"):
        ours({**config().to_dict(), "rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}})
    with pytest.raises(ModelError, match="do not form pairs"):
        ours({**config().to_dict(), "rope_parameters": {"partial_rotary_factor": 0.2578125, "rope_theta": 1e4}})


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "linear", "factor": 0}, "needs the number factor; the config has 0"),
        ({"rope_type": "dynamic", "factor": -2.0}, "needs the number factor"),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "gives no frequencies"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 0}, "gives no frequencies"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "the smaller one"),
        ({"rope_type": "longrope", "long_factor": [0.0], "short_factor": [1.0]}, "a list of numbers above 0"),
    ],
)
def test_numbers_that_give_no_frequencies_are_refused(rope: dict[str, Any], message: str) -> None:
    values = config().to_dict() | {"rope_parameters": {"rope_theta": 1e4, **rope}}
    with pytest.raises(ModelError, match=message) as caught:
        ours(values)
    assert all(problem.concerns == "rotary" for problem in caught.value.problems)
    assert caught.value.problems
