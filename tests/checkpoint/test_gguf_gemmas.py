"""Metadata of Gemma 3n and 4: what files say by layer, and what no model of the family has."""

from typing import Any

import pytest

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf_gemmas import change_gemma3n, change_gemma4

Json = dict[str, Any]
FACTORS = [1.0, 1.0, 1e30, 1e30]


def gemma4(factors: list[float], **values: Any) -> Json:
    config: Json = {"num_hidden_layers": 6, "vocab_size": 99, "head_dim": 512, "num_key_value_heads": 2}
    config |= {"intermediate_size": 8, "rope_scaling": {"short_factor": factors}}
    change_gemma4(config, {"tensors": set(), "attention.shared_kv_layers": 2, **values})
    return config


def test_layers_differ_where_the_file_says_so() -> None:
    stored = {f"blk.{layer}.attn_{part}.weight" for layer in range(6) for part in "kv"} - {"blk.5.attn_v.weight"}
    lists = {"attention.head_count_kv.layers": [4, 4, 4, 4, 4, 1], "feed_forward_length.layers": [8] * 4 + [16] * 2}
    config = gemma4(FACTORS, tensors=stored, **{"attention.key_length_swa": 256}, **lists)
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert config["per_layer_config"] == {"5": {"head_dim": 512, "num_key_value_heads": 1}}
    assert (config["head_dim"], config["num_key_value_heads"], config["intermediate_size"]) == (256, 4, 8)
    assert config["attention_k_eq_v"]
    assert config["use_double_wide_mlp"]
    assert config["rope_parameters"]["full_attention"]["partial_rotary_factor"] == 0.5
    plain = gemma4(FACTORS)
    assert not plain["attention_k_eq_v"]
    assert not plain["use_double_wide_mlp"]


@pytest.mark.parametrize("factors", [[1.0, 2.0], [1e30, 1.0], [1e30, 1e30], []])
def test_other_factors_of_frequencies_are_refused(factors: list[float]) -> None:
    with pytest.raises(CheckpointError, match="rope_freqs"):
        gemma4(factors)


def test_other_widths_by_layer_are_refused() -> None:
    with pytest.raises(CheckpointError, match="feed_forward_length"):
        gemma4(FACTORS, **{"feed_forward_length.layers": [8, 8, 8, 16, 16, 16]})


def test_shares_of_gates_come_from_deviations() -> None:
    config: Json = {"num_hidden_layers": 25, "vocab_size": 99}
    change_gemma3n(config, {"activation_sparsity_scale": [1.6448536, float("-inf")]})
    assert config["activation_sparsity_pattern"] == pytest.approx([0.95, 0.0])
    assert config["num_kv_shared_layers"] == 5
    with pytest.raises(CheckpointError, match="activation_sparsity_scale"):
        change_gemma3n(config, {"activation_sparsity_scale": 3})
