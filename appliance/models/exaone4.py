"""EXAONE 4: norms of the output of a block, and of query and key heads. Its full layers have no positions where other
layers have a window.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, NormSpec, QueryKeyNorm, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    norm = NormSpec("rms", model.config.norm_eps)
    return dense_decoder(model, Dense(residual=ResidualSpec("output"), query_key_norm=QueryKeyNorm(norm)))
