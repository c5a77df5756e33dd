"""Mixtral: Llama with experts in place of each feed-forward, chosen by softmax."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import MIXTRAL_MODULES, Mixture
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = model.experts(RoutingSpec("softmax", renormalize=True))
    return dense_decoder(model, Dense(), Mixture.of(model, spec, MIXTRAL_MODULES))
