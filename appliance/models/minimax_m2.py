"""MiniMax M2: norms of all query heads and all key heads, partial rotation, experts chosen by corrected sigmoids."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, RoutingSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.experts import MIXTRAL_MODULES, Mixture
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    spec = model.experts(RoutingSpec("sigmoid", correction=True, renormalize=True))
    dense = Dense(query_key_norm=model.query_key_norm("whole"))
    return dense_decoder(model, dense, Mixture.of(model, spec, MIXTRAL_MODULES))
