"""Gemma 3n and 4 as data: shared keys and values, sizes by layer, and what their configs cannot ask for."""

from typing import Any

import pytest

from appliance.layers.decoder import compile_decoder
from appliance.layers.spec import AttentionSpec, DecoderSpec, FeedForwardSpec
from appliance.models.errors import ModelError
from appliance.program.caches import KvShape
from appliance.program.operators import KvWrite, PagedAttention
from tests.models.test_families import config, decoder


def attentions(spec: DecoderSpec) -> list[AttentionSpec]:
    found = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    assert len(found) == len(spec.layers)
    return found


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_layers_that_read_anothers_keys_have_no_cache(name: str) -> None:
    """The last two of five layers read those of the last windowed layer, and of the full one."""
    spec = decoder(name)
    assert [attention.kv_layer for attention in attentions(spec)] == [None, None, None, 3 - 1, 1]
    program = compile_decoder(spec, {}).program
    wide = 32 if name == "gemma4" else 16
    assert program.caches == (KvShape(2, 16, 16, 8), KvShape(2, wide, wide), KvShape(2, 16, 16, 8))
    assert [op.cache for op in program.operators if isinstance(op, KvWrite)] == [0, 1, 2]
    assert [op.cache for op in program.operators if isinstance(op, PagedAttention)] == [0, 1, 2, 2, 1]
    assert not {f"layers.{layer}.{part}" for layer in (3, 4) for part in ("k", "v", "k_norm")} & set(spec.weights)


def test_gemma4_rotates_a_part_of_its_wide_heads() -> None:
    windowed, full = attentions(decoder("gemma4"))[:2]
    assert windowed.rope is not None
    assert full.rope is not None
    assert (windowed.head_dim, windowed.rope.rotary_dim, windowed.rope.scaling) == (16, 16, None)
    assert (full.head_dim, full.rope.rotary_dim) == (32, 32)
    assert full.rope.scaling is not None
    assert full.scale == 1.0


def test_gemma4_configs_state_the_sizes_of_full_layers_in_two_forms() -> None:
    for name in ("gemma4", "gemma4-experts"):
        listed = config(name)
        stated = {key: value for key, value in listed.items() if key != "per_layer_config"}
        stated |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
        assert decoder(name, stated) == decoder(name, listed)


def test_feed_forwards_are_wider_or_sparse_by_layer() -> None:
    wide, sparse = ([layer.feed_forward for layer in decoder(name).layers] for name in ("gemma4", "gemma3n"))
    assert all(isinstance(each, FeedForwardSpec) for each in (*wide, *sparse))
    assert [each.intermediate_size for each in wide if isinstance(each, FeedForwardSpec)] == [96, 96, 96, 192, 192]
    assert [each.intermediate_size for each in sparse if isinstance(each, FeedForwardSpec)] == [96, 64, 96, 128, 96]
    cuts = [each.gate_deviations for each in sparse if isinstance(each, FeedForwardSpec)]
    assert [cut is None for cut in cuts] == [False, True, False, True, False]
    assert cuts[0] == pytest.approx(0.8416, abs=1e-4)  # four fifths of a normal distribution lie below


@pytest.mark.parametrize("name", ["gemma3", "gemma3n", "gemma4"])
@pytest.mark.parametrize("root", ["model.language_model.", "language_model.model."])
def test_a_multimodal_checkpoint_is_read_through_its_text_part(name: str, root: str) -> None:
    spec = decoder(name, tensor=f"{root}norm.weight")
    tensors = {source.tensor for source in spec.weights.values()}
    assert tensors
    assert all(tensor.startswith(root) for tensor in tensors)
    assert "*vision_tower.*" in spec.ignored_tensors


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("gemma3n", {"altup_active_idx": 1}, "altup_active_idx is 1"),
        ("gemma3n", {"activation_sparsity_pattern": [0.5, 1.0, 0, 0, 0]}, "activation_sparsity_pattern"),
        ("gemma3n", {"activation_sparsity_pattern": [0.5]}, "does not list 5 layers"),
        ("gemma3n", {"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input is 0"),
        ("gemma3n", {"num_kv_shared_layers": 4}, "no full_attention is before"),
        ("gemma4", {"num_kv_shared_layers": 9}, "no full_attention is before"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ("gemma4-experts", {"top_k_experts": 7}, "7 experts are to be chosen"),
    ],
)
def test_what_is_not_expressed_is_refused_by_name(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        decoder(name, config(name) | values)
