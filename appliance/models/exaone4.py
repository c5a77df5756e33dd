"""EXAONE 4: norms of the output of a block, and of query and key heads. Its full layers have no positions where other
layers have a window.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return dense_decoder(model, Dense(residual=ResidualSpec("output"), query_key_norm=model.query_key_norm()))
