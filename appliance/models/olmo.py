"""OLMo 1, 2 and 3.

The first has layer norms without any weight. The later ones norm the output of a block, and all query heads and all
key heads as one vector. OLMo 3 mixes windowed and full layers; only the full ones have a rotary scaling.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, NormSpec, QueryKeyNorm, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    if model.config.model_type != "olmo":
        norm = NormSpec("rms", model.config.norm_eps)
        return dense_decoder(model, Dense(residual=ResidualSpec("output"), query_key_norm=QueryKeyNorm(norm, "whole")))
    if facts.config.get("clip_qkv") is not None:
        raise ModelError(Problem("clip_qkv in the checkpoint's config is not in this version"))
    return dense_decoder(model, Dense(norm=NormSpec("layer", model.config.norm_eps, weight=False)))
