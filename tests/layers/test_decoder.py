"""The program of a decoder: joined weights, fused operators, and the rows that the last layer leaves out."""

from typing import Any

import pytest
from msgspec.structs import replace

from appliance.layers.decoder import compile_decoder
from appliance.layers.norm_spec import NormSpec
from appliance.layers.program import CompiledDecoder
from appliance.layers.rope import RopeSpec
from appliance.layers.spec import AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, QueryKeyNorm, ResidualSpec
from appliance.program.operators import (
    Add,
    Embed,
    GatedActivation,
    GatherRows,
    HeadNorm,
    KvWrite,
    LayerNorm,
    Linear,
    PagedAttention,
    RmsNorm,
    Rope,
    SoftCap,
)
from appliance.program.slots import Extent

ROPE = RopeSpec(8, 10_000.0)
ATTENTION = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5, rope=ROPE)
LAYER = LayerSpec(ATTENTION, FeedForwardSpec(48, "silu"))
SPEC = DecoderSpec(vocab_size=100, hidden_size=32, layers=(LAYER, LAYER), norm=NormSpec("rms", 1e-6), weights={})


def of_kind(compiled: CompiledDecoder, kind: type) -> list:
    return [op for op in compiled.program.operators if isinstance(op, kind)]


def linears(compiled: CompiledDecoder) -> list[str]:
    return [op.weight for op in of_kind(compiled, Linear)]


def test_parts_of_one_layout_become_one_linear() -> None:
    compiled = compile_decoder(SPEC, {})
    assert linears(compiled)[:4] == ["layers.0.q+k+v", "layers.0.o", "layers.0.gate+up", "layers.0.down"]
    use = compiled.weights["layers.0.q+k+v"]
    assert use.parts == ("layers.0.q", "layers.0.k", "layers.0.v")
    assert use.shapes == ((32, 32), (16, 32), (16, 32))


def test_parts_of_different_layouts_stay_apart_in_one_slot() -> None:
    compiled = compile_decoder(SPEC, {"layers.0.v": "finer", "layers.1.up": "finer"})
    first = of_kind(compiled, Linear)[:2]
    assert [op.weight for op in first] == ["layers.0.q+k", "layers.0.v"]
    assert first[0].out.slot is first[1].out.slot
    assert (first[0].out.start, first[0].out.width, first[1].out.start, first[1].out.width) == (0, 48, 48, 16)
    assert {"layers.1.gate", "layers.1.up"} <= set(linears(compiled))


def test_joined_weights_have_joined_biases() -> None:
    attention = replace(ATTENTION, qkv_bias=True)
    compiled = compile_decoder(replace(SPEC, layers=(replace(LAYER, mixer=attention),)), {})
    linear = of_kind(compiled, Linear)[0]
    assert linear.bias == "layers.0.q+k+v.bias"
    assert compiled.weights[linear.bias].parts == ("layers.0.q.bias", "layers.0.k.bias", "layers.0.v.bias")
    assert compiled.weights[linear.bias].shapes == ((32,), (16,), (16,))


def test_every_weight_of_the_program_is_named_once() -> None:
    compiled = compile_decoder(SPEC, {})
    read = {op.weight for op in compiled.program.operators if isinstance(op, Linear | RmsNorm | HeadNorm)}
    read |= {op.table for op in compiled.program.operators if isinstance(op, Embed | Rope)}
    assert read == set(compiled.weights) | set(compiled.ropes)


def test_additions_are_fused_into_the_norm_that_follows() -> None:
    norms = of_kind(compile_decoder(SPEC, {}), RmsNorm)
    assert [norm.weight for norm in norms] == [
        "layers.0.attention_norm",
        "layers.0.feed_forward_norm",
        "layers.1.attention_norm",
        "layers.1.feed_forward_norm",
        "norm",
    ]
    assert norms[0].residual is None  # nothing is added before the first norm
    assert all(norm.residual is not None for norm in norms[1:])


def test_post_norms_lie_between_block_and_addition() -> None:
    layer = replace(LAYER, residual=ResidualSpec("sandwich"))
    norms = of_kind(compile_decoder(replace(SPEC, layers=(layer,)), {}), RmsNorm)
    post, following = norms[1], norms[2]
    assert post.weight == "layers.0.post_attention_norm"
    assert post.residual is None
    assert following.x is post.out
    assert following.residual is not None


def test_only_sampled_rows_go_on_after_the_last_attention() -> None:
    operators = compile_decoder(SPEC, {}).program.operators
    last = max(index for index, op in enumerate(operators) if isinstance(op, PagedAttention))
    assert [type(op) for op in operators[last + 1 : last + 3]] == [GatherRows, GatherRows]
    outputs = [op.out.slot if isinstance(op, Linear) else op.out for op in operators[last + 1 :]]
    assert {slot.extent for slot in outputs} == {Extent.SAMPLED}
    assert {op.out.extent for op in operators[:last] if isinstance(op, RmsNorm)} == {Extent.TOKENS}


def test_keys_of_all_tokens_are_cached_in_every_layer() -> None:
    compiled = compile_decoder(SPEC, {})
    assert [op.cache for op in of_kind(compiled, KvWrite)] == [0, 1]
    assert len(compiled.program.caches) == 2


def test_one_rotation_turns_queries_and_keys() -> None:
    rope = of_kind(compile_decoder(SPEC, {}), Rope)[0]
    assert (rope.x.start, rope.x.width, rope.num_heads) == (0, 48, 6)


def test_layers_that_rotate_alike_share_a_table() -> None:
    other = replace(LAYER, mixer=replace(ATTENTION, rope=replace(ROPE, attention_factor=1.2)))
    compiled = compile_decoder(replace(SPEC, layers=(LAYER, other, LAYER)), {})
    assert [op.table for op in of_kind(compiled, Rope)] == ["rope.0", "rope.1", "rope.0"]


def test_head_norms_come_before_the_rotation() -> None:
    norm = QueryKeyNorm(NormSpec("rms", 1e-5))
    assert kinds_with(norm)[2:6] == [Linear, HeadNorm, HeadNorm, Rope]
    assert kinds_with(replace(norm, after_rotation=True))[2:6] == [Linear, Rope, HeadNorm, HeadNorm]


def kinds_with(norm: QueryKeyNorm) -> list[type]:
    layer = replace(LAYER, mixer=replace(ATTENTION, query_key_norm=norm))
    return [type(op) for op in compile_decoder(replace(SPEC, layers=(layer,)), {}).program.operators]


def test_a_norm_of_the_whole_width_is_one_head() -> None:
    norm = QueryKeyNorm(NormSpec("layer", 1e-5, bias=True), "whole")
    layer = replace(LAYER, mixer=replace(ATTENTION, query_key_norm=norm))
    norms = of_kind(compile_decoder(replace(SPEC, layers=(layer,)), {}), HeadNorm)
    assert [(op.num_heads, op.head_dim, op.kind) for op in norms] == [(1, 32, "layer"), (1, 16, "layer")]
    assert [op.bias for op in norms] == ["layers.0.q_norm.bias", "layers.0.k_norm.bias"]


def test_parallel_blocks_add_one_sum() -> None:
    """With one norm both blocks read it; with two, each its own, of the stream before the layer."""
    for one_norm, names in ((True, {"attention_norm"}), (False, {"attention_norm", "feed_forward_norm"})):
        layer = replace(LAYER, residual=ResidualSpec(parallel=True, one_norm=one_norm))
        compiled = compile_decoder(replace(SPEC, layers=(layer, layer)), {})
        norms = of_kind(compiled, RmsNorm)
        assert {norm.weight.rpartition(".")[2] for norm in norms if norm.weight != "norm"} == names
        assert [norm.residual is not None for norm in norms if norm.weight != "norm"].count(True) == 1
        assert len(of_kind(compiled, Add)) == 2


def test_output_norms_add_at_once() -> None:
    layer = replace(LAYER, residual=ResidualSpec("output"))
    compiled = compile_decoder(replace(SPEC, layers=(layer,)), {})
    assert [norm.weight for norm in of_kind(compiled, RmsNorm)] == [
        "layers.0.post_attention_norm",
        "layers.0.post_feed_forward_norm",
        "norm",
    ]
    assert all(norm.residual is None for norm in of_kind(compiled, RmsNorm))
    assert len(of_kind(compiled, Add)) == 2


def test_the_multiplier_is_of_what_blocks_add() -> None:
    layer = replace(LAYER, residual=ResidualSpec(multiplier=0.25))
    norms = of_kind(compile_decoder(replace(SPEC, layers=(layer,)), {}), RmsNorm)
    assert [norm.scale for norm in norms] == [1.0, 0.25, 0.25]


@pytest.mark.parametrize(
    "values",
    [
        {"norms": "output", "parallel": True},
        {"norms": "sandwich", "parallel": True},
        {"one_norm": True},
        {"norms": "output", "multiplier": 0.5},
    ],
)
def test_residuals_that_no_model_has_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="blocks"):
        ResidualSpec(**values)


def test_a_tied_head_reads_the_embedding() -> None:
    compiled = compile_decoder(replace(SPEC, tie_embeddings=True, logit_soft_cap=30.0), {})
    assert linears(compiled)[-1] == "embed"
    assert "head" not in compiled.weights
    assert isinstance(compiled.program.operators[-1], SoftCap)
    assert compiled.program.logits.width == 100


def test_a_plain_feed_forward_has_its_activation_in_the_first_linear() -> None:
    layer = LayerSpec(replace(ATTENTION, rope=None), FeedForwardSpec(48, "gelu_tanh", gated=False, bias=True))
    spec = replace(SPEC, layers=(layer,), norm=NormSpec("layer", 1e-5, bias=True), learned_positions=True)
    compiled = compile_decoder(spec, {})
    up = next(op for op in of_kind(compiled, Linear) if op.weight == "layers.0.up")
    assert up.activation == "gelu_tanh"
    assert not of_kind(compiled, GatedActivation)
    assert not compiled.ropes
    assert of_kind(compiled, Embed)[0].position_table == "positions"
    assert {norm.bias for norm in of_kind(compiled, LayerNorm)} >= {"norm.bias"}


def test_a_decoder_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        compile_decoder(replace(SPEC, layers=()), {})


def test_a_layer_may_lack_a_block_and_its_norm() -> None:
    mixing, feeding = replace(LAYER, feed_forward=None), replace(LAYER, mixer=None)
    program = compile_decoder(replace(SPEC, layers=(feeding, mixing, feeding)), {}).program
    norms = [op.weight for op in program.operators if isinstance(op, RmsNorm)]
    assert norms == ["layers.0.feed_forward_norm", "layers.1.attention_norm", "layers.2.feed_forward_norm", "norm"]
    assert len(program.caches) == 1
    gathers = [op for op in program.operators if isinstance(op, GatherRows)]
    assert [op.x.width for op in gathers] == [SPEC.hidden_size] * 2  # the stream, and what the last block reads
    with pytest.raises(ValueError, match="a layer has a mixer"):
        replace(LAYER, mixer=None, feed_forward=None)
    with pytest.raises(ValueError, match="only two blocks"):
        replace(LAYER, mixer=None, residual=ResidualSpec(parallel=True))
