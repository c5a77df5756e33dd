"""LFM2 and its MoE: gated short convolutions, with normed attention in some layers."""

from msgspec.structs import replace

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.recurrent_spec import ShortConvSpec
from appliance.layers.spec import DecoderSpec, FeedForwardSpec, RoutingSpec
from appliance.models.dense import Dense, Recurrent, dense_decoder
from appliance.models.experts import ExpertModules, Mixture
from appliance.models.family import Model, Part

_MODULES = {
    "norm": "embedding_norm",
    "attention_norm": "operator_norm",
    "feed_forward_norm": "ffn_norm",
    "o": "self_attn.out_proj",
    "q_norm": "self_attn.q_layernorm",
    "k_norm": "self_attn.k_layernorm",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
}
_EXPERTS = ExpertModules(
    experts="feed_forward.experts",
    router="feed_forward.gate",
    gate="w1",
    up="w3",
    down="w2",
    correction="feed_forward.expert_bias",
)


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    dense = Dense(modules=_MODULES, query_key_norm=model.query_key_norm())
    return dense_decoder(model, dense, _mixture(model), _short_conv(model), _feed_forward(model))


def _short_conv(model: Model) -> Recurrent:
    width, bias = model.config.hidden_size, model.flag("conv_bias", default=False)
    spec = ShortConvSpec(model.count("conv_L_cache", 3), conv_bias=bias, in_bias=bias, out_bias=bias)
    parts = [
        Part(f"conv.{name}", "conv.in_proj", bias, rows=(index * width, (index + 1) * width))
        for index, name in enumerate("bcx")
    ]
    return Recurrent(spec, (*parts, Part("conv.weight", "conv.conv", bias), Part("conv.o", "conv.out_proj", bias)))


def _feed_forward(model: Model) -> FeedForwardSpec:
    """Returns the dense block, whose width is two thirds of the stated one times a factor, rounded up, unless the
    config (as that of the MoE) says not to."""
    spec = model.feed_forward()
    if model.config.model_type != "lfm2" or not model.flag("block_auto_adjust_ff_dim", default=True):
        return spec
    width = int(2 * spec.intermediate_size / 3)
    multiple = max(model.count("block_multiple_of", 256), 1)
    width = int(model.number("block_ffn_dim_multiplier", 1.0) * width)
    return replace(spec, intermediate_size=-(-width // multiple) * multiple)


def _mixture(model: Model) -> Mixture | None:
    if model.config.model_type != "lfm2_moe":
        return None
    routing = RoutingSpec(
        "sigmoid",
        correction=model.flag("use_expert_bias", default=True),
        renormalize=model.flag("norm_topk_prob", default=True),
        scale=model.number("routed_scaling_factor", 1.0),
    )
    first = model.count("num_dense_layers", 2)
    is_sparse = tuple(index >= first for index in range(model.config.num_layers))
    return Mixture.of(model, model.experts(routing), _EXPERTS, is_sparse)
