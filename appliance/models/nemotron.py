"""Nemotron 3 and 4 (dense) and Jais 2: layer norms, and a squared ReLU without a gate.

Nemotron stores norm weights less one.
"""

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.norm_spec import NormSpec
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    is_less_one = model.config.model_type == "nemotron" and not facts.stored.norm_includes_one
    dense = Dense(
        norm=NormSpec("layer", model.config.norm_eps, bias=True),
        stored_norms="add_one" if is_less_one else "none",
        gated=False,
    )
    return dense_decoder(model, dense)
