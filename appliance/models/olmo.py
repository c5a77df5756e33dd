"""OLMo 1, 2 and 3.

The first has layer norms without any weight. The later ones norm the output of a block, and all query heads and all
key heads as one vector. OLMo 3 mixes windowed and full layers; only the full ones have a rotary scaling.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

CLIPPED = {"clip_qkv": "queries, keys and values are not clipped"}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len, CLIPPED)
    if model.config.model_type == "olmo":
        return dense_decoder(model, Dense(norm=NormSpec("layer", model.config.norm_eps, weight=False)))
    return dense_decoder(model, Dense(residual=ResidualSpec("output"), query_key_norm=model.query_key_norm("whole")))
