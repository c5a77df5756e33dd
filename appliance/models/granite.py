"""Granite 3 (dense): Llama with multipliers of the embedding, the scores, the output of each block, and the logits."""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec, ResidualSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return dense_decoder(model, granite_differences(model))


def granite_differences(model: Model) -> Dense:
    """Returns the multipliers of the config as differences from Llama."""
    return Dense(
        residual=ResidualSpec(multiplier=model.number("residual_multiplier", 1.0)),
        embedding_scale=model.number("embedding_multiplier", 1.0),
        logit_scale=1.0 / model.number("logits_scaling", 1.0),
    )
