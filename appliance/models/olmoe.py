"""OLMoE and FlexOlmo: OLMo's norms of all query heads and all key heads, and experts chosen by softmax."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ExpertsSpec, NormSpec, QueryKeyNorm, ResidualSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.experts import Mixture
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """FlexOlmo norms the output of its blocks, as OLMo 2 does."""
    model = Model.of(facts, max_model_len)
    if facts.config.get("clip_qkv") is not None:
        raise ModelError(Problem("clip_qkv in the checkpoint's config is not in this version"))
    spec = ExpertsSpec(
        num_experts=model.config.num_experts,
        num_chosen=model.config.num_experts_per_token,
        width=model.config.moe_intermediate_size,
        activation=model.feed_forward().activation,
        routing=RoutingSpec("softmax", renormalize=model.flag("norm_topk_prob", default=False)),
    )
    dense = Dense(
        residual=ResidualSpec("output" if model.config.model_type == "flex_olmo" else "pre"),
        query_key_norm=QueryKeyNorm(NormSpec("rms", model.config.norm_eps), "whole"),
    )
    return dense_decoder(model, dense, Mixture.of(model, spec))
